"""A release's chosen checkpoint to a repository of a hub, with a card that says how it was judged.

    push = prepare(flow, deployment, "org/name", target="")     # refuses what has no GO; sends nothing
    pushed = send(deployment, push, private=True)

Only what passed every gate before production is pushed, and nothing that production took back: a hub's readers see a
model and its figures, not why it was stopped. Whether the licence permits it is the pusher's to judge; the card and the
command's output show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import ConfigError, ExitCode, Terminal
from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.model import HubId
from llm_pipeline.operations.decisions import offered_targets
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.flow import APPROVAL
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.headline import ended_in_rollback, flow_order, stage_label
from llm_pipeline.reporting.hub_card import PROVENANCE_DIRECTORY, CardFacts, render_card
from llm_pipeline.store.manifest import MANIFEST_FILE, SIGNATURE_FILE
from llm_pipeline.store.place_state import read_place

if TYPE_CHECKING:
    from llm_pipeline.hub.access import Hub
    from llm_pipeline.hub.upload import Pushed, PushedFile

_MARKER = f"{PROVENANCE_DIRECTORY}/release.json"


class NotPassed(Terminal):
    """The release has no checkpoint that passed all of its gates."""

    exit_code = ExitCode.NO_GO


@dataclass(frozen=True)
class Push:
    """What is to be pushed where.

    Attributes:
        card: The model card.
        files: Everything that the repository's branch shall hold, the card too.
        base: The base model.
    """

    repository: str
    release_id: str
    recipe: str
    card: str
    files: tuple[PushedFile, ...]
    base: PinnedModel

    def lines(self) -> Iterator[str]:
        """For people, before anything is sent."""
        total = byte_size(sum(file.size for file in self.files))
        yield f"{self.release_id}, recipe {self.recipe}: {len(self.files)} files, {total}, to {self.repository}"
        gated = ", and its repository is gated" if self.base.gated else ""
        stated = self.base.license or "not stated"
        yield f"licence of the base model: {stated}{gated}; whether it permits this is yours to judge"


def prepare(flow: ReleaseProgress, deployment: Deployment, repository: str, target: str = "") -> Push:
    """Everything that a push sends: the verified checkpoint, its card, and where it came from.

    Args:
        flow: The release.
        deployment: Whose hub has the base model's card.
        repository: `organisation/name`; empty for one of the token's account, named after model and recipe.
        target: Push what was chosen for this target; empty where all targets chose the same.

    Raises:
        NotPassed: It did not pass all of its gates, or was rolled back.
        ConfigError: The targets chose different recipes and none is named, there is no such target, or the repository
            has no name that a hub takes.
        IntegrityError: The checkpoint, or what the store says of it, is damaged or not signed as it must be.
    """
    from llm_pipeline.hub.access import connect
    from llm_pipeline.hub.upload import PushedFile, account

    try:
        TypeAdapter(HubId).validate_python(repository or "own/own")
    except ValidationError as error:
        raise ConfigError("not the name of a repository", where=repository, hint="give organisation/name") from error
    hub = connect(deployment.hub.endpoint, deployment.hub.token_variable)
    recipe, targets = _chosen(flow, target)
    results = sorted(flow.results().values(), key=lambda result: (flow_order(result.stage), result.subject))
    _require_passed(flow, recipe, targets, results)
    checkpoint = flow.artifact("quantize", recipe, "checkpoint")
    directory = flow.store.fetch(checkpoint)
    manifest = flow.store.manifest(checkpoint)
    if not repository:
        repository = f"{account(hub)}/{flow.record.model.id.rpartition('/')[2]}-{recipe}"
    signed = (directory / SIGNATURE_FILE).is_file()
    facts = CardFacts(
        repository=repository,
        record=flow.record,
        recipe=recipe,
        targets=targets,
        report=collect(flow.store, flow.record.release_id),
        results=tuple(results),
        checkpoint=checkpoint,
        bytes=manifest.size,
        signed=signed,
        base=_base_fields(flow, hub),
    )
    card = render_card(facts)
    texts = {"README.md": card.encode(), _MARKER: _provenance(facts)}
    if signed:
        texts |= {
            f"{PROVENANCE_DIRECTORY}/{name}": (directory / name).read_bytes()
            for name in (MANIFEST_FILE, SIGNATURE_FILE)
        }
    weights = [file for file in manifest.files if file.path not in texts]
    files = [PushedFile(file.path, directory / file.path, file.size, file.sha256) for file in weights]
    files += [PushedFile(path, data, len(data), sha256_bytes(data)) for path, data in texts.items()]
    return Push(repository, flow.record.release_id, recipe, card, tuple(files), flow.record.model)


def send(deployment: Deployment, push: Push, *, private: bool = False) -> Pushed:
    """Send it to the deployment's hub, in one commit, and check what the hub holds afterwards; safe to repeat.

    Raises:
        ConfigError: There is no token, or the repository is not one to push to.
        HubRefused: The hub does not let us.
        HubUnavailable: The hub cannot be asked now; the same call goes on where this one stopped.
        IntegrityError: The hub does not hold what was sent.
    """
    from llm_pipeline.hub.access import connect
    from llm_pipeline.hub.upload import push_files

    hub = connect(deployment.hub.endpoint, deployment.hub.token_variable)
    message = f"Release {push.release_id}, recipe {push.recipe}"
    return push_files(hub, push.repository, push.files, marker=_MARKER, message=message, private=private)


def _chosen(flow: ReleaseProgress, target: str) -> tuple[str, tuple[str, ...]]:
    """The recipe, and the targets that it passed all gates for."""
    if target and target not in flow.targets:
        hint = f"its targets: {', '.join(flow.targets)}"
        raise ConfigError(f"release {flow.record.release_id} has no target {target!r}", hint=hint)
    passed = offered_targets(flow, APPROVAL)
    wanted = [name for name in passed if target in ("", name)]
    if not wanted:
        what = f"target {target}" if target else "no target"
        words = f"{what} has not passed its gates" if target else f"{what} has passed its gates"
        hint = f"`llm-pipeline show {flow.record.release_id}` says what they found"
        raise NotPassed(words, where=flow.record.release_id, hint=hint)
    chosen = {name: flow.chosen_recipe(name) for name in wanted}
    if len(set(chosen.values())) > 1:
        words = ", ".join(f"{recipe} for {name}" for name, recipe in chosen.items())
        raise ConfigError(f"the targets chose different recipes: {words}", hint="name one of them with --target")
    return chosen[wanted[0]], tuple(wanted)


def _require_passed(flow: ReleaseProgress, recipe: str, targets: Sequence[str], results: Sequence[StageResult]) -> None:
    where = flow.record.release_id
    judgement = flow.judgement_of(recipe)
    concerned = [one for one in results if one.subject.partition(":")[0] in ("", recipe, *targets)]
    stopped = [
        f"{stage_label(one)}: {one.judgement.verdict.value}, {one.judgement.summary}"
        for one in concerned
        if one.judgement is not None and one.judgement.verdict is not Verdict.GO
    ]
    if judgement is None or judgement.verdict is not Verdict.GO:
        stopped.append(f"the checkpoint of {recipe} that is there now was not judged")
    for target in targets:
        of_target = {(one.stage, one.subject): one for one in concerned if one.subject.partition(":")[0] == target}
        state = read_place(flow.store, flow.record.place_of(target))
        left = state.way_back is not None and state.way_back.left == where
        back = state.production is not None and state.production.release_id == where
        if ended_in_rollback(of_target) or (left and not back):
            stopped.append(f"it was rolled back on {target}")
    if stopped:
        hint = "only what passed every gate is pushed; release it again"
        raise NotPassed(f"not pushed: {'; '.join(stopped)}", where=where, hint=hint)


def _base_fields(flow: ReleaseProgress, hub: Hub) -> dict[str, Any]:
    """What is taken over from the base's card; without that card, its licence alone."""
    from llm_pipeline.hub.access import HubRefused
    from llm_pipeline.hub.model_card import inherited_fields

    model = flow.record.model
    card: dict[str, Any] = {}
    if flow.release.model.source == "hub":
        try:
            data = hub.information(model.id, model.commit, model.name).card_data
        except HubRefused:  # it is gone since, or somebody else's to read
            data = None
        card = data.to_dict() if data else {}
    return inherited_fields(card, model, f"{hub.endpoint}/{model.id}")


def _provenance(facts: CardFacts) -> bytes:
    """Where the checkpoint came from, for programs; it tells a repository of ours from another one, too."""
    document = {
        "release": facts.record.release_id,
        "model": {"id": facts.record.model.id, "commit": facts.record.model.commit},
        "recipe": facts.quantization.model_dump(mode="json"),
        "targets": list(facts.targets),
        "checkpoint": f"{facts.checkpoint.kind}/{facts.checkpoint.digest}",
        "stages": [
            {
                "stage": one.stage,
                "subject": one.subject,
                "key": one.key,
                "verdict": one.judgement.verdict.value if one.judgement else None,
                "artifacts": {name: f"{ref.kind}/{ref.digest}" for name, ref in sorted(one.artifacts.items())},
                "tools": dict(sorted(one.tools.items())),
            }
            for one in facts.behind_it
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"

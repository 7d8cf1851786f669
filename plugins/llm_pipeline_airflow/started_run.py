"""What a run is to do: what it has otherwise than its config, which commit it releases, if any, and as which release.

The values of the form that starts it by hand are the run's parameters, whether they come from the form, the command
line or the API. They are checked by the run's first task, before it waits for its turn, and again by `resolve`.

Its start decides about the commit. The release watch names one: it is released, unless another run took it up before
(events come at least once). The schedule releases what the revision names, unless production on every target serves
that already. A person's run always runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowSkipException
from pydantic import ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.config.release import ModelSource
from llm_pipeline.hub.watch import Reference, Start
from llm_pipeline.release.loading import ConfiguredRelease, LoadedRelease
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release.watch_record import Claim, claim_commit, read_claim
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import read_place
from llm_pipeline.store.signed_documents import replace_document
from llm_pipeline_airflow.faults import get_logger

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)

Cause = Literal["watch", "schedule", "manual"]

_REVISION: str = ModelSource.model_json_schema()["properties"]["revision"]["pattern"]


def form_of(loaded: LoadedRelease) -> dict[str, Param]:
    """The fields of a release's form, by name."""
    config = loaded.config
    fields = {
        "revision": Param(
            None,
            type=["null", "string"],
            pattern=_REVISION,
            title="Revision",
            description=f"Branch, tag or commit of {config.model.id}; empty releases the config's own, "
            f"{config.model.revision}.",
        ),
        "recipes": _some(config.recipes, "Recipes", "Recipes to try, out of the config's."),
        "targets": _some(config.targets, "Targets", "Targets to build for and to promote on, out of the config's."),
        "strategy": Param(
            config.ladder.strategy,
            type="string",
            enum=["climb", "every"],
            values_display={"climb": "climb: until one passes", "every": "every: try all of them"},
            title="Ladder",
            description="Whether the next recipe is tried only when the cheaper one did not pass, or all are.",
        ),
        "budget_hours": _budget(config.budget.hours, "Budget, hours", "hours"),
        "budget_cost": _budget(config.budget.cost, "Budget, money", loaded.deployment.currency),
        "replace": Param(
            False,
            type="boolean",
            title="Replace",
            description=f"Take {', '.join(loaded.places.values())} over from the model that holds it: its users get "
            f"{config.model.id} once this release is promoted. Otherwise a release into another model's place is "
            "refused.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            description="Only show the plan, in the log of the first task: what would be done, its time and cost.",
        ),
    }
    if config.ladder.strategy == "every":
        del fields["strategy"]  # see `overrides_of`
    return fields


def _some(known: tuple[str, ...], title: str, description: str) -> Param:
    """Names to choose from; the form shows a list with all of them chosen."""
    return Param(list(known), type="array", examples=list(known), title=title, description=description)


def _budget(configured: float | None, title: str, unit: str) -> Param:
    what = f"A person is asked if the plan takes more {unit} than this; empty for "
    what += "no limit." if configured is None else f"the config's {configured:g}."
    return Param(configured, type=["null", "number"], title=title, description=what)


def overrides_of(params: Mapping[str, Any], loaded: ConfiguredRelease) -> Overrides:
    """What a run's parameters have otherwise than its config.

    Raises:
        ConfigError: The config does not have what is asked for, or the run cannot do it.
    """
    overrides = Overrides.of(params).effective(loaded.config)
    if overrides.strategy == "climb":
        raise ConfigError(
            f"strategy: the DAG of release {loaded.config.name} tries all recipes at once, and cannot climb",
            where=str(loaded.path),
            hint="set ladder.strategy of the release config to climb, or name fewer recipes; nothing was started",
        )
    return overrides


def revision_of_run(loaded: LoadedRelease, context: Context) -> str | None:
    """The commit, branch or tag that a run releases; None for the config's own. Safe to ask again.

    Raises:
        AirflowSkipException: The run has nothing to do: another one released the commit, or production serves it.
        HubRefused: The hub does not let the schedule see what the revision names.
        Transient: The hub or the store cannot be asked now.
    """
    start = started_by_watch(context)
    if start is not None:
        log.info("the release watch saw %s on %s: %s", start.commit, start.revision, start.reason)
        run, released = run_name(context), Reference(commit=start.commit, content=start.content)
        held = claim_commit(open_store(loaded.deployment.store), loaded.config.name, _claim(released, run, "watch"))
        if held.run != run:
            raise AirflowSkipException(
                f"nothing to do: {start.commit} was released by run {held.run} at "
                f"{held.claimed_at:%Y-%m-%d %H:%M UTC}; trigger the DAG by hand to release it again"
            )
        return start.commit
    if _cause(context) == "schedule" and loaded.config.model.source == "hub":
        return _new_commit_or_skip(loaded, context)
    return context["params"].get("revision")


def who_started(context: Context) -> str:
    """The person who started a run; its name where Airflow knows nobody."""
    return getattr(context["dag_run"], "triggering_user_name", None) or f"run {run_name(context)}"


def remember_commit(loaded: ConfiguredRelease, release_id: str, context: Context) -> None:
    """Record that a run released this commit, so that the watch does not start another.

    Raises:
        Transient: The store cannot be used now.
    """
    store = open_store(loaded.deployment.store)
    reference = _reference(store, release_id)
    claim_commit(store, loaded.config.name, _claim(reference, run_name(context), _cause(context)))


def remember_run(store: ArtifactStore, dag_id: str, run_id: str, release_id: str) -> None:
    """Write down which release a run works on."""
    value = {"dag_id": dag_id, "run_id": run_id, "release_id": release_id}
    replace_document(store, _document_name(dag_id, run_id), value)


def release_of_run(store: ArtifactStore, dag_id: str, run_id: str) -> str | None:
    """The release of a run; None before its first stage has named it."""
    document = store.read_document(_document_name(dag_id, run_id))
    return str(document.value["release_id"]) if document else None


def started_by_watch(context: Context) -> Start | None:
    """The newest start among the events that started a run; None when the release watch did not start it."""
    events = [event for found in (context.get("triggering_asset_events") or {}).values() for event in found]
    for event in sorted(events, key=lambda event: event.timestamp, reverse=True):
        try:
            return Start.model_validate((event.extra or {}).get("payload"))
        except ValidationError:
            log.info("an asset event at %s names no commit; it was created by hand", event.timestamp)
    return None


def run_name(context: Context) -> str:
    """A run's name among all runs of all DAGs; a retry or a clear keeps it."""
    return f"{context['dag_run'].dag_id}/{context['run_id']}"


def _cause(context: Context) -> Cause:
    if started_by_watch(context) is not None:
        return "watch"
    return "schedule" if str(context["dag_run"].run_type).rpartition(".")[2].lower() == "scheduled" else "manual"


def _claim(released: Reference, run: str, cause: Cause) -> Claim:
    return Claim(commit=released.commit, content=released.content, run=run, cause=cause, claimed_at=datetime.now(UTC))


def _new_commit_or_skip(loaded: LoadedRelease, context: Context) -> str:
    """The commit that the revision names, unless production serves it, or another run is about to."""
    from llm_pipeline.hub.access import connect
    from llm_pipeline.hub.observe import head_commit, list_commit

    access, model = loaded.deployment.hub, loaded.config.model
    hub = connect(access.endpoint, access.token_variable)
    head = list_commit(hub, model.id, head_commit(hub, model.id, model.revision)).reference()
    store = open_store(loaded.deployment.store)
    claim = read_claim(store, loaded.config.name, head.commit)
    if claim is not None and claim.run == run_name(context):  # cleared by somebody who wants it to run again
        return head.commit
    dag_id, _, run_id = claim.run.partition("/") if claim is not None else ("", "", "")
    if claim is not None and context["ti"].get_dr_count(dag_id, run_ids=[run_id], states=["queued", "running"]):
        raise AirflowSkipException(f"nothing new: {head.commit} is being released by run {claim.run}")
    serving = {target: _serving(store, loaded, target) for target in loaded.config.targets}
    if head.content and all(one is not None and one.content == head.content for one in serving.values()):
        raise AirflowSkipException(
            f"nothing new: {model.id}@{model.revision} is {head.commit}, whose content production already serves on "
            f"{', '.join(serving)}; trigger the DAG by hand to release it again"
        )
    return head.commit


def _serving(store: ArtifactStore, loaded: LoadedRelease, target: str) -> Reference | None:
    """What production on a target serves, if it was made from this release config as it is now."""
    production = read_place(store, loaded.config.place_of(target)).of(loaded.config.model.id).production
    if production is None:
        return None
    try:
        record = read_release_record(store, production.release_id)
    except ConfigError:  # somebody removed it: what it was made from is unknown
        return None
    if record.release != loaded.release:
        return None
    return _reference(store, production.release_id)


def _reference(store: ArtifactStore, release_id: str) -> Reference:
    from llm_pipeline.hub.observe import listing_of

    return listing_of(read_release_record(store, release_id).model).reference()


_PLAIN = re.compile(r"[A-Za-z0-9_.:+-]")


def _document_name(dag_id: str, run_id: str) -> str:
    return f"runs/{_safe(dag_id)}/{_safe(run_id)}.json"


def _safe(name: str) -> str:
    """The name with every character that is not plain in a file's name written as `@<hex>@`."""
    return "at_" + "".join(c if _PLAIN.fullmatch(c) else f"@{ord(c):x}@" for c in name)

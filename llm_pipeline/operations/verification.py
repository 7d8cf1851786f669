"""What serves, checked against what was released: artifacts, servers' answers, router; `llm-pipeline verify`, nightly.

    checks = list(verify_place(store, deployment, "h100"))      # on the host of the place's servers
    problems = [check.problem for check in checks if check.problem]

It composes what is there: `inspection.verification` reads every byte and signature that the pointers name, `status`
looks at pointers, router and servers together, and each server that runs must state the release's digest and give its
golden answers. Nothing is changed by it, a damaged artifact included: the guard and people act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.slots import OpenAiSlots, SlotControl, slot_endpoint, slots_of
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.inspection.verification import verify_reference
from llm_pipeline.operations.status import Health, PlaceStatus, deployment_status
from llm_pipeline.serving.endpoint_access import require_served
from llm_pipeline.serving.repository_links import read_links
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import read_place
from llm_pipeline.store.references import Reference, pointers_of


class Check(Frozen):
    """One thing that was checked at a place.

    Attributes:
        what: In words, e.g. `production:org/model/h100` or `golden answers of blue`.
        problem: What is wrong; empty when it is well.
    """

    place: str
    what: str
    problem: str = ""

    def __str__(self) -> str:
        state = "WRONG" if self.problem else "ok   "
        return f"{state}  {self.place}  {': '.join(filter(None, (self.what, self.problem)))}"


def verify_place(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[Check]:
    """Check one place, on the host of its servers, part by part.

    Raises:
        ConfigError: The deployment has no such place.
        Transient: The store cannot be read now: then nothing is known.
    """
    found = deployment_status(store, deployment, [place]).places[0]
    yield from _whole(store, place)
    yield from _as_status_says(found)
    slots = slots_of(store, deployment, place)
    named = {one.repository.digest: one for one in (found.previous, found.production) if one is not None}
    answering = {server.slot: server.digest for server in found.servers if server.condition == "answers"}
    for slot, server in deployment.places[place].slots.items():
        if (pointer := named.get(answering.get(slot, ""))) is not None:
            for what, problem in _live(slots, slot, slot_endpoint(server), pointer.repository):
                yield Check(place=place, what=f"{what} of {slot}", problem=problem)


def summary(place: str, checks: Sequence[Check]) -> str:
    """All of it in one line: the message of a task that fails."""
    wrong = [check for check in checks if check.problem]
    if not wrong:
        return f"{place}: nothing wrong ({len(checks)} checked)"
    told = "; ".join(f"{check.what}: {check.problem}" for check in wrong)
    return f"{place}: {len(wrong)} of {len(checks)} checks found something wrong: {told}"


def _whole(store: ArtifactStore, place: str) -> Iterator[Check]:
    """Every byte and signature of what both pointers name, and of what the repositories link to."""
    try:
        state = read_place(store, place)
    except IntegrityError:  # the status says so
        return
    for reference in pointers_of(place, state):
        checks = list(_verified(store, place, reference))
        yield from checks
        if any(check.problem for check in checks):
            continue
        try:
            links = read_links(store.fetch(reference.pointer.repository))
        except IntegrityError as error:
            yield Check(place=place, what=f"links of {reference}", problem=error.message)
            continue
        for directory, ref in links.items():
            yield from _verified(store, place, ref, name=f"{reference}, {directory}")


def _verified(store: ArtifactStore, place: str, reference: Reference, name: str = "") -> Iterator[Check]:
    for verification in verify_reference(store, reference):
        problem = "; ".join(f"{one.path}: {one.problem}" for one in verification.problems)
        yield Check(place=place, what=name or verification.name, problem=problem)


def _as_status_says(found: PlaceStatus) -> Iterator[Check]:
    """Whether pointers, router and servers fit together; production that somebody stopped is no fault."""
    for problem in found.problems:
        yield Check(place=found.place, what="status", problem=problem)
    if found.health is Health.ELSEWHERE:
        words = "its servers are not on this host: run it where they are (workers.targets of the deployment)"
        yield Check(place=found.place, what="status", problem=words)
    elif found.health is Health.DEAD and not found.problems:
        yield Check(place=found.place, what="status", problem=found.headline)
    elif not found.problems:
        yield Check(place=found.place, what=f"status, {found.health}")


def _live(slots: SlotControl, slot: SlotName, endpoint: Endpoint, repository: ArtifactRef) -> Iterator[tuple[str, str]]:
    """What is wrong with the answers of a server that runs."""
    if isinstance(slots, OpenAiSlots):
        yield "answers", slots.differs(slot, repository) or ""
        return
    looks: dict[str, Callable[[], object]] = {
        "digest": partial(require_served, endpoint, repository.digest),
        "golden answers": lambda: slots.warm_up(slot, repository).unlike(),
    }
    for what, look in looks.items():
        try:
            yield what, str(look() or "")
        except (Transient, IntegrityError) as error:  # a server that gives no answer is a finding
            yield what, error.message

"""Starting and stopping what serves at a place: one function each, whoever asks, and asking twice changes nothing.

`stop_all` ends everything that releases left serving on this host, so that nobody has to look for process ids:
production, a release on trial, what is staged, and stages whose run has ended. A release that is on its way keeps its
staging server and its stages: whoever runs it ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from llm_pipeline.base import detached
from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.evidence import all_ended
from llm_pipeline.canary.moving import LEFT_ALONE, end_canary, have_answering, retire, token_of, traffic_to
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase, latest_canary
from llm_pipeline.canary.router import (
    ALL,
    Patience,
    RouterUnavailable,
    SlotName,
    StartedRouter,
    TrafficRouter,
    all_to,
    name_release,
)
from llm_pipeline.canary.slots import ServedPlace, slot_servers, slot_state
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.operations.rollback import roll_back
from llm_pipeline.operations.served_place import (
    acting,
    despite_others,
    is_moving,
    place_as_it_is,
    place_with_router,
    router_here,
    start_router,
)
from llm_pipeline.operations.staging import on_its_way, places_of, stop_staging
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.serving.triton_server import find_server, stop_server
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import Pointer, Serving, read_place, serving_at
from llm_pipeline.store.references import model_of_release

log = get_logger(__name__)

DRAIN_SECONDS = 30.0
_CLOSING_SECONDS = 5.0


def start_production(store: ArtifactStore, deployment: Deployment, place: str) -> Serving:
    """Have what the pointers call production answer users; what runs already is left as it is.

    Returns:
        What serves.

    Raises:
        ConfigError: Nothing is in production there.
        IntegrityError: What is signed does not say that it was packaged for that model and place.
        PlaceBusy: Somebody else acts on the place now.
        PipelineError: The server or the router cannot be started.
    """
    here = place_as_it_is(store, deployment, "", place)
    return start(here, lambda production: start_router(deployment, place, production.slot))


def start(place: ServedPlace, opened: Callable[[Pointer], TrafficRouter]) -> Serving:
    """`start_production`, by a place's parts: the server first, then the router, then the users.

    A canary that is on its way keeps its share of the traffic. One whose candidate's server has ended, as after a power
    cut, is rolled back: nobody drives it.

    Args:
        place: With its router as it is, running or not, and of whichever model: the pointers tell.
        opened: Starts the router, where it is ours.
    """
    store, target = place.store, place.target
    with acting(store, target) as lease:
        serving = serving_at(store, target)  # under the lease: a rollback may have moved the pointers just before
        if serving is None:
            raise ConfigError(f"nothing is in production at {target}", hint="`llm-pipeline run` releases a model")
        pointer = serving.pointer
        require_served(store, serving.model_id, target, pointer)
        token = token_of(lease, place)
        have_answering(place.slots, pointer.slot, pointer.repository, token, seconds=place.patience.prove)
        router = opened(pointer)
        name_release(router, pointer.slot, pointer.release_id)
        record = latest_canary(store, target)
        lost = record is not None and record.candidate_started and not place.slots.alive(record.candidate)
        if record is not None and not record.settled and lost:
            journal = CanaryJournal(store, record.release_id, target)
            end_canary(
                journal, replace(place, router=router), lease=lease, by="start", reason=all_ended(record.step_percent)
            )
            return serving
        if record is not None and record.phase is Phase.PROMOTED and is_moving(record, pointer) and lost:
            place.slots.ensure(record.candidate, record.repository, token)  # it has users, and is about to be settled
        _send_users(record, serving, router, place.patience, epoch=token.epoch)
    return serving


def _send_users(
    record: CanaryRecord | None, serving: Serving, router: TrafficRouter, patience: Patience, *, epoch: int
) -> None:
    """All traffic to production, unless a canary has its share by right."""
    state = router.read()[0]
    alone = state.candidate is None and state.weights.get(serving.pointer.slot) == ALL
    if alone or is_moving(record, serving.pointer):
        return
    owner = f"start of {serving.pointer.release_id}"
    traffic_to(router, all_to(serving.pointer.slot, owner=owner, epoch=epoch), patience)


def stop_production(
    store: ArtifactStore, deployment: Deployment, place: str, *, drain_seconds: float = DRAIN_SECONDS
) -> Sequence[str]:
    """Stop what serves users at a place: its router, where that is ours, then its servers. The pointers stay.

    A canary there must have ended.

    Args:
        store: The deployment's.
        deployment: What is stopped is on this host.
        place: Which of its places.
        drain_seconds: Longest wait for requests in flight; new ones are refused meanwhile.

    Returns:
        What was stopped; nothing where nothing ran.

    Raises:
        PlaceBusy: Somebody else acts on the place now.
    """
    here = place_as_it_is(store, deployment, "", place)
    return stop(here, lambda: _running(deployment, place), drain_seconds=drain_seconds)


def stop(
    place: ServedPlace, running: Callable[[], Mapping[SlotName, ArtifactRef]], *, drain_seconds: float
) -> Sequence[str]:
    """`stop_production`, by a place's parts.

    Args:
        place: With its router as it is, running or not.
        running: What each slot's server was started with, of those that run.
        drain_seconds: Longest wait for requests in flight.
    """
    with acting(place.store, place.target) as lease:
        token = token_of(lease, place)
        stopped = list(_close(place.router, drain_seconds))
        quick = replace(place, patience=Patience(drain=drain_seconds))
        for slot, repository in {**_wanted(place), **running()}.items():
            was_running = place.slots.alive(slot)
            words = retire(quick, slot, repository, token=token, drain_seconds=drain_seconds)
            if was_running and words != LEFT_ALONE:
                stopped.append(f"the server in {slot}")
        return stopped


def _close(router: TrafficRouter | None, drain_seconds: float) -> Iterator[str]:
    """Stop a router of this package after its requests have ended; others are left alone."""
    if not isinstance(router, StartedRouter):
        return
    running = router.runs
    if running:
        with suppress(RouterUnavailable):
            router.close()
            wait_until(lambda: not router.in_flight(), max(drain_seconds, _CLOSING_SECONDS))
    router.stop()
    if running:
        yield "the router"


def _wanted(place: ServedPlace) -> dict[SlotName, ArtifactRef]:
    """What should serve in each slot: a server that ended must not be started again by the guard."""
    state = read_place(place.store, place.target)
    known = (state.previous, state.production)
    return {pointer.slot: pointer.repository for pointer in known if pointer is not None}


def _running(deployment: Deployment, place: str) -> dict[SlotName, ArtifactRef]:
    root = Path(deployment.state_root)
    found = {slot: find_server(slot_state(root, place, slot)) for slot in slot_servers(deployment.places[place])}
    return {
        slot: ArtifactRef(kind="model_repository", digest=server.digest)
        for slot, server in found.items()
        if server is not None
    }


def end_here(deployment: Deployment, place: str) -> None:
    """End the router and every server of a place of this host, for a tool that has ended whoever acted there.

    As `stop_production` does, where that is possible: a canary that was cut short is ended all the same.
    """
    state = Path(deployment.state_root) / place
    if not state.is_dir():
        return
    with suppress(PipelineError):
        stop_production(open_store(deployment.store), deployment, place, drain_seconds=0.0)
    router = router_here(deployment, place)
    if isinstance(router, StartedRouter):
        router.stop()
    for server in (*slot_servers(deployment.places[place]), "staging", "comparison"):
        stop_server(state / server)


_STAGE_SECONDS = 20.0


def stop_all(
    store: ArtifactStore, deployment: Deployment, place: str, *, drain_seconds: float = DRAIN_SECONDS
) -> Sequence[str]:
    """End what was left at a place: stages first, because one may drive a canary, and production last.

    Asked twice, it is done once. The pointers stay, and `start_production` brings production back.

    Args:
        store: The deployment's.
        deployment: What is stopped is on this host.
        place: Which of its places.
        drain_seconds: Longest wait for requests of users in flight.

    Returns:
        What was stopped; nothing where nothing ran.

    Raises:
        PlaceBusy: Somebody acts on the place now.
        PipelineError: A canary cannot be rolled back; the same call is safe again.
    """
    _require_ours(deployment, place)
    stopped: list[str] = []
    if on_its_way(store, place) is None:
        for process in _left_stages(store, deployment, place):
            detached.stop(process, grace_seconds=_STAGE_SECONDS)
            stopped.append(process.name)
    stopped += _end_trial(store, deployment, place)
    if not (Path(deployment.state_root) / place).is_dir():
        return stopped  # its servers are on another host, where this is asked for
    stopped += despite_others(lambda: stop_production(store, deployment, place, drain_seconds=drain_seconds))
    local = isinstance(deployment.places[place].staging, ServerPorts)
    if local and on_its_way(store, place) is None and stop_staging(store, deployment, place):
        stopped.append("the staging server")
    return stopped


def _require_ours(deployment: Deployment, place: str) -> None:
    """Refuse before the first is stopped: without its router a server of another user would serve nobody."""
    for record in sorted((Path(deployment.state_root) / place).glob("*/*process.json")):
        if (process := detached.load(record)) is not None:
            detached.require_ours(process)


def _end_trial(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[str]:
    release_id = _left_on_trial(store, deployment, place)
    if release_id is None:
        return
    model = model_of_release(store, release_id) or read_place(store, place).model_id
    roll_back(place_with_router(store, deployment, model, place), by="stop", leaving=release_id)
    yield f"the canary of {release_id}"


def _left_on_trial(store: ArtifactStore, deployment: Deployment, place: str) -> str | None:
    """The release whose canary has not ended, where its servers are on this host."""
    record = latest_canary(store, place)
    left = record is not None and not record.settled and (Path(deployment.state_root) / place).is_dir()
    return record.release_id if record is not None and left else None


def _left_stages(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[detached.DetachedProcess]:
    """Stages of the place's releases that run on this host though their run is over."""
    jobs = Path(deployment.work_root) / "jobs"
    for release in list_directory(jobs):
        if place in places_of(store, release.name):
            found = [detached.load(record) for record in sorted(release.glob("*/*/process.json"))]
            yield from (process for process in found if process is not None and process.alive)

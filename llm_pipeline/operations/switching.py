"""Starting and stopping what serves at a place: one function each, whoever asks, and asking twice changes nothing.

`stop_all` ends everything that releases left serving on this host, so that nobody has to look for process ids:
production, a release on trial, what is staged, and stages whose run has ended. A release that is on its way keeps its
staging server and its stages: whoever runs it ends them. The staging server is started and stopped by hand, too: a
packaged release for a look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from llm_pipeline.base import detached
from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.moving import LEFT_ALONE, end_canary, have_answering, retire, token_of, traffic_to
from llm_pipeline.canary.record import CanaryJournal, Phase, all_ended, latest_canary
from llm_pipeline.canary.router import ALL, SLOTS, RouterUnavailable, StartedRouter, TrafficRouter, all_to
from llm_pipeline.canary.slots import ServedPlace
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
from llm_pipeline.release.claim import Claimant, LocalProcess, readable_claims
from llm_pipeline.release.contract import StageResult, result_of
from llm_pipeline.release.execute import execute
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.serving.triton_server import find_server, stop_server
from llm_pipeline.store import open_store
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import Pointer, Serving, read_place, serving_at
from llm_pipeline.store.references import model_of_release

log = get_logger(__name__)

DRAIN_SECONDS = 30.0
_CLOSING_SECONDS = 5.0
_STAGE_SECONDS = 20.0
STAGING, COMPARISON = "staging", "comparison"
"""Directories of their servers, in that of a place."""


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
        router.name_release(pointer.slot, pointer.release_id)
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
        state = router.read()[0]
        alone = state.candidate is None and state.weights.get(pointer.slot) == ALL
        if not alone and not is_moving(record, pointer):  # a canary has its share by right
            want = all_to(pointer.slot, owner=f"start of {pointer.release_id}", epoch=token.epoch)
            traffic_to(router, want, place.patience)
    return serving


def stop(place: ServedPlace, *, drain_seconds: float = DRAIN_SECONDS) -> Sequence[str]:
    """Stop what serves users at a place: its router, where that is ours, then its servers. The pointers stay.

    A canary there must have ended.

    Args:
        place: With its router as it is, running or not, and of whichever model: what is stopped is on this host.
        drain_seconds: Longest wait for requests in flight; new ones are refused meanwhile.

    Returns:
        What was stopped; nothing where nothing ran.

    Raises:
        PlaceBusy: Somebody else acts on the place now.
    """
    with acting(place.store, place.target) as lease:
        token, router, stopped = token_of(lease, place), place.router, []
        if isinstance(router, StartedRouter):  # one of this package; others are left alone
            if router.runs:
                stopped.append("the router")
                with suppress(RouterUnavailable):
                    router.close()
                    wait_until(lambda: not router.in_flight(), max(drain_seconds, _CLOSING_SECONDS))
            router.stop()
        state, slots = read_place(place.store, place.target), place.slots
        known = (state.previous, state.production)  # what should serve: the guard must not start what ended before
        served = {pointer.slot: pointer.repository for pointer in known if pointer is not None}
        for slot in SLOTS:
            if digest := slots.served(slot):
                served[slot] = ArtifactRef(kind="model_repository", digest=digest)
        for slot, repository in served.items():
            was_running = slots.alive(slot)
            words = retire(place, slot, repository, token=token, drain_seconds=drain_seconds)
            if was_running and words != LEFT_ALONE:
                stopped.append(f"the server in {slot}")
        return stopped


def end_here(deployment: Deployment, place: str) -> None:
    """End the router and every server of a place of this host, for a tool that has ended whoever acted there.

    As `stop` does, where that is possible: a canary that was cut short is ended all the same.
    """
    state = Path(deployment.state_root) / place
    if not state.is_dir():
        return
    with suppress(PipelineError):
        stop(place_as_it_is(open_store(deployment.store), deployment, "", place), drain_seconds=0.0)
    router = router_here(deployment, place)
    if isinstance(router, StartedRouter):
        router.stop()
    for server in (*deployment.places[place].slots, STAGING, COMPARISON):
        stop_server(state / server)


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
    state = Path(deployment.state_root) / place
    for process in map(detached.load, sorted(state.glob("*/*process.json"))):
        if process is not None:  # refused before the first is stopped: without its router a server would serve nobody
            detached.require_ours(process)
    stopped: list[str] = []
    if on_its_way(store, place) is None:
        for process in _left_stages(store, deployment, place):
            detached.stop(process, grace_seconds=_STAGE_SECONDS)
            stopped.append(process.name)
    if not state.is_dir():
        return stopped  # its servers are on another host, where this is asked for
    record = latest_canary(store, place)
    if record is not None and not record.settled:
        model = model_of_release(store, record.release_id) or read_place(store, place).model_id
        roll_back(place_with_router(store, deployment, model, place), by="stop", leaving=record.release_id)
        stopped.append(f"the canary of {record.release_id}")
    here = place_as_it_is(store, deployment, "", place)
    stopped += despite_others(lambda: stop(here, drain_seconds=drain_seconds))
    local = isinstance(deployment.places[place].staging, ServerPorts)
    if local and on_its_way(store, place) is None and stop_staging(store, deployment, place):
        stopped.append("the staging server")
    return stopped


def _left_stages(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[detached.DetachedProcess]:
    """Stages of the place's releases that run on this host though their run is over."""
    jobs = Path(deployment.work_root) / "jobs"
    for release in list_directory(jobs):
        if place in places_of(store, release.name):
            found = [detached.load(record) for record in sorted(release.glob("*/*/process.json"))]
            yield from (process for process in found if process is not None and process.alive)


def start_staging(store: ArtifactStore, deployment: Deployment, place: str, release_id: str) -> StageResult:
    """Serve a packaged release on the staging server and probe it, as its run does.

    Raises:
        ConfigError: The release has no target for the place.
        MissingResult: It has not been packaged.
        PipelineError: It does not start; another release that is staged is left alone.
    """
    refuse_in_use(store, place, release_id)
    return _stage(deployment, place, release_id, "staging")


def stop_staging(store: ArtifactStore, deployment: Deployment, place: str, *, release_id: str = "") -> bool:
    """Stop what is staged at a place, with a comparison's server; returns whether a staging server ran.

    Args:
        store: The deployment's.
        deployment: Where the place is.
        place: Which of its places.
        release_id: What is staged; a server of this host is found without it.

    Raises:
        ConfigError: A release is on its way and may be measured there, or the server is none of this host and no
            release is named.
    """
    refuse_in_use(store, place)
    ports, root = deployment.places[place].staging, Path(deployment.state_root) / place
    if isinstance(ports, ServerPorts):
        was_running = find_server(root / STAGING) is not None
        for server in (STAGING, COMPARISON):
            stop_server(root / server)
        return was_running
    if not release_id:
        raise ConfigError(f"the staging server of {place} is not on this host", hint="name its release: --release")
    return bool(_stage(deployment, place, release_id, "staging_down").metrics["was_running"])


def _stage(deployment: Deployment, place: str, release_id: str, stage: str) -> StageResult:
    flow = ReleaseProgress.open(deployment, release_id).here(deployment)
    target = flow.record.target_at(place)
    if target not in flow.targets:
        raise ConfigError(f"release {release_id} has no target for {place}", hint=f"it has {', '.join(flow.targets)}")
    return result_of(execute(flow.request(stage, target)))


def refuse_in_use(store: ArtifactStore, place: str, release_id: str = "") -> None:
    """Refuse what would disturb a release that is on its way at a place; `release_id` itself is not disturbed.

    Raises:
        ConfigError: There is one.
    """
    holder = on_its_way(store, place)
    if holder is not None and holder.release_id != release_id:
        raise ConfigError(
            f"{holder} is running and may be measured at {place}",
            hint="wait for it, or stop that run; `llm-pipeline claims --free MODEL` frees the claim of a dead one",
        )


def on_its_way(store: ArtifactStore, place: str) -> Claimant | None:
    """The release that may be measured at a place now; None for none.

    What waits for a person computes and serves nothing, and a process of this host that has ended goes no further.
    """
    for state in readable_claims(store)[0].values():
        holder = state.holder
        if holder is None or holder.parked or not holder.release_id:
            continue
        dead = isinstance(holder.party, LocalProcess) and holder.party.alive is False
        if not dead and place in places_of(store, holder.release_id):
            return holder
    return None


def places_of(store: ArtifactStore, release_id: str) -> set[str]:
    """Where a release's targets are served; nowhere for one whose record cannot be read."""
    try:
        record = read_release_record(store, release_id)
    except PipelineError:
        return set()
    return {record.place_of(target.name) for target in record.release.targets}

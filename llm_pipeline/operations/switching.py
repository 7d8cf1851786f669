"""Starting and stopping what serves at a place: one function each, whoever asks, and asking twice changes nothing.

Both act under the lease of the place's canary and show the slots a token, like whoever releases or rolls back there: of
two who act at the same moment, one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.canary.agreement import is_moving
from llm_pipeline.canary.draining import retire
from llm_pipeline.canary.envoy_process import StartedEnvoy, stop_router
from llm_pipeline.canary.epochs import epoch_above
from llm_pipeline.canary.moving import Patience, traffic_to, wait
from llm_pipeline.canary.open_router import name_release, open_router, router_as_it_is
from llm_pipeline.canary.record import current_canary, lease_name, read_record
from llm_pipeline.canary.rollback import LEASE_SECONDS
from llm_pipeline.canary.router import ALL, RouterUnavailable, SlotName, TrafficRouter, all_to
from llm_pipeline.canary.slots import TritonSlots, slot_ports, slot_state, slots_of
from llm_pipeline.canary.stable_server import have_answering
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.lease import Lease, LeaseHeld
from llm_pipeline.store.places import Serving, serving_at
from llm_pipeline.store.pointers import read_pointers
from llm_pipeline.trusted_pointers import require_served

log = get_logger(__name__)

DRAIN_SECONDS = 30.0
_CLOSING_SECONDS = 5.0


def start_production(store: ArtifactStore, deployment: Deployment, place: str) -> Serving:
    """Have what the pointers call production answer users; what runs already is left as it is.

    A canary that is on its way keeps its share of the traffic: whoever drives it, or the guard, ends it.

    Returns:
        What serves.

    Raises:
        ConfigError: Nothing is in production there.
        IntegrityError: What is signed does not say that it was packaged for that model and place.
        Transient: Somebody else acts on the place now.
        PipelineError: The server or the router cannot be started.
    """
    serving = serving_at(store, place)
    if serving is None:
        raise ConfigError(f"nothing is in production at {place}", hint="`llm-pipeline run` releases a model")
    pointer = serving.pointer
    require_served(store, serving.model_id, place, pointer)
    config, slots = deployment.places[place], slots_of(store, deployment, place)
    patience = Patience.with_router(config.router)
    with _acting(store, place) as lease:
        token = _token(lease, _router(deployment, place), slots)
        have_answering(slots, pointer.slot, pointer.repository, token, seconds=patience.prove)
        initial = all_to(pointer.slot, owner="production", epoch=0)
        state = slot_state(Path(deployment.state_root), place, pointer.slot).with_name("router")
        router = open_router(config.router, slot_ports(config), state, initial=initial)
        name_release(router, pointer.slot, pointer.release_id)
        _send_users(store, place, serving, router, patience, epoch=token.epoch)
    return serving


def _send_users(
    store: ArtifactStore, place: str, serving: Serving, router: TrafficRouter, patience: Patience, *, epoch: int
) -> None:
    """All traffic to production, unless a canary has its share by right."""
    release_id = current_canary(store, place)
    record = read_record(store, release_id, place) if release_id else None
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

    Args:
        store: The deployment's.
        deployment: What is stopped is on this host.
        place: Which of its places.
        drain_seconds: Longest wait for requests in flight; new ones are refused meanwhile.

    Returns:
        What was stopped; nothing where nothing ran.

    Raises:
        ConfigError: A release is on trial there.
        Transient: Somebody else acts on the place now.
    """
    slots = slots_of(store, deployment, place)
    with _acting(store, place) as lease:
        _refuse_on_trial(store, place)
        router = _router(deployment, place)
        token = _token(lease, router, slots)
        stopped = list(_close(router, drain_seconds))
        for slot, repository in _repositories(store, deployment, place).items():
            running = slots.alive(slot)
            limit = Patience(drain=drain_seconds).draining(drain_seconds)
            retired = retire(router, slots, slot, repository, token=token, limit=limit)
            if running and retired.stopped:
                stopped.append(f"the server in {slot}")
        return stopped


@contextmanager
def _acting(store: ArtifactStore, place: str) -> Iterator[Lease]:
    try:
        with Lease(store, lease_name(place), seconds=LEASE_SECONDS) as lease:
            yield lease
    except LeaseHeld as error:
        hint = "wait until it is done; a server that ended meanwhile is started by `llm-pipeline guard`"
        raise Transient(f"somebody moves the traffic of {place} now: {error.message}", hint=hint) from error


def _refuse_on_trial(store: ArtifactStore, place: str) -> None:
    release_id = current_canary(store, place)
    record = read_record(store, release_id, place) if release_id else None
    if record is not None and not record.settled:
        raise ConfigError(
            f"release {record.release_id} is on trial at {place} ({record.phase})",
            hint="`llm-pipeline rollback` ends its canary; then stop production",
        )


def _close(router: TrafficRouter | None, drain_seconds: float) -> Iterator[str]:
    """Have an Envoy of ours take no new connections, let its requests end, and stop it; others are left alone."""
    if not isinstance(router, StartedEnvoy):
        return
    running = router.runs
    if running:
        with suppress(RouterUnavailable):
            router.close()
            wait(lambda: not _in_flight(router), max(drain_seconds, _CLOSING_SECONDS))
    stop_router(router.files.state)
    if running:
        yield "the router"


def _in_flight(router: StartedEnvoy) -> int:
    return sum(router.active_requests(slot) or 0 for slot in router.slots)


def _repositories(store: ArtifactStore, deployment: Deployment, place: str) -> dict[SlotName, ArtifactRef]:
    """What serves in each slot, or should: a server that ended must not be started again by the guard."""
    found: dict[SlotName, ArtifactRef] = {}
    serving = serving_at(store, place)
    if serving is not None:
        pointers = read_pointers(store, serving.model_id, place)[0]
        for pointer in (pointers.previous, pointers.production):
            if pointer is not None:
                found[pointer.slot] = pointer.repository
    for slot in slot_ports(deployment.places[place]):
        running = find_server(slot_state(Path(deployment.state_root), place, slot))
        if running is not None:
            found[slot] = ArtifactRef(kind="model_repository", digest=running.digest)
    return found


def _router(deployment: Deployment, place: str) -> TrafficRouter | None:
    config = deployment.places[place]
    return router_as_it_is(config.router, slot_ports(config), Path(deployment.state_root) / place / "router")


def _token(lease: Lease, router: TrafficRouter | None, slots: TritonSlots) -> FencingToken:
    epoch = 0
    if router is not None:
        with suppress(RouterUnavailable):
            epoch = router.read()[0].epoch
    return FencingToken(epoch_above(lease.epoch, epoch, slots.newest().epoch), lease.epoch)

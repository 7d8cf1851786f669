"""Whether pointers, router and servers of a place say the same: what is called production is what users get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from llm_pipeline.canary.open_router import router_as_it_is
from llm_pipeline.canary.record import CanaryRecord, Phase, current_canary, read_record
from llm_pipeline.canary.router import ALL, RouterUnavailable, RouteState, SlotName
from llm_pipeline.canary.slots import slot_ports, slot_state
from llm_pipeline.canary.way_back_record import WayBack, read_way_back
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.pointers import Pointer, Pointers
from llm_pipeline.store.references import PlacedPointers


def look_at_place(store: ArtifactStore, deployment: Deployment, placed: PlacedPointers) -> list[str] | None:
    """What does not fit together at a place of this host; None where its servers are on another one.

    Raises:
        PipelineError: A document of the store is damaged, or it cannot be read.
    """
    target, state_root = placed.target, Path(deployment.state_root)
    if not (state_root / target).is_dir():
        return None
    on_trial = current_canary(store, target)
    record = read_record(store, on_trial, target) if on_trial else None
    way_back = read_way_back(store, placed.model_id, target)
    serves = _serves(deployment, target)
    return list(disagreements(placed.pointers, record, way_back, _traffic(deployment, target), serves))


def _serves(deployment: Deployment, target: str) -> dict[SlotName, str | None]:
    from llm_pipeline.serving.triton_server import find_server

    ports = slot_ports(deployment.places[target])
    found = {slot: find_server(slot_state(Path(deployment.state_root), target, slot)) for slot in ports}
    return {slot: server.digest if server is not None else None for slot, server in found.items()}


def _traffic(deployment: Deployment, target: str) -> RouteState | None:
    place = deployment.places[target]
    router = router_as_it_is(place.router, slot_ports(place), Path(deployment.state_root) / target / "router")
    try:
        return router.read()[0] if router is not None else None
    except RouterUnavailable:
        return None


def disagreements(
    pointers: Pointers,
    record: CanaryRecord | None,
    way_back: WayBack | None,
    traffic: RouteState | None,
    serves: Mapping[SlotName, str | None],
) -> Iterator[str]:
    """What does not fit together, one sentence each; nothing while a canary is driven or settled.

    Args:
        pointers: Of the model that holds the place.
        record: Of the canary that the target had last.
        way_back: The model's last.
        traffic: What the router was last told; None where it could not be asked.
        serves: Digest of what each slot's server serves; None for a slot without a server.
    """
    production = pointers.production
    if way_back is not None and not way_back.done:
        yield f"the way back from {way_back.left} to {way_back.to} was begun and is not done"
    if record is not None and record.phase is Phase.ROLLING_BACK:
        yield f"the canary of {record.release_id} is being rolled back, and that is not done"
    if production is None:
        return
    if serves.get(production.slot) != production.repository.digest:
        found = serves.get(production.slot)
        what = f"serves {found[:12]}" if found else "has no server"
        yield f"production is {production.release_id} in {production.slot}, but that slot {what}"
    previous = pointers.previous.repository.digest if pointers.previous else None
    if traffic is not None and traffic.standby is not None and serves.get(traffic.standby) not in (None, previous):
        yield f"the router has {traffic.standby} stand by for production, and that slot serves no version of before"
    if traffic is not None and not _moving(record, production):
        yield from _elsewhere(production, traffic)


def _moving(record: CanaryRecord | None, production: Pointer) -> bool:
    """Whether a canary has traffic by right: it has not ended, or was promoted and is not settled yet."""
    if record is None or record.phase is Phase.ROLLED_BACK:
        return False
    return record.phase is not Phase.PROMOTED or record.production_since == production.promoted_at


def _elsewhere(production: Pointer, traffic: RouteState) -> Iterator[str]:
    share = traffic.weights.get(production.slot, 0)
    if share != ALL or traffic.candidate is not None:
        yield (
            f"production is {production.release_id} in {production.slot}, but the router sends it "
            f"{share / 100:g} % of the traffic (told so by {traffic.owner})"
        )

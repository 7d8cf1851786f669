"""Whether pointers, router and servers of a place agree: users must get what the pointers call production."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_pipeline.canary.record import CanaryRecord, Phase
from llm_pipeline.canary.router import ALL, RouteState, SlotName
from llm_pipeline.store.place_state import PlaceState, Pointer


def disagreements(
    state: PlaceState,
    record: CanaryRecord | None,
    traffic: RouteState | None,
    serves: Mapping[SlotName, str | None],
) -> Iterator[str]:
    """What record, router and slots disagree on, one sentence each; empty while a canary is driven or settled.

    Args:
        state: What is written down of the place.
        record: Of the canary that the target had last.
        traffic: What the router was last told; None where it could not be asked.
        serves: Digest of what each slot's server serves; None for a slot without a server.
    """
    production, way_back = state.production, state.way_back
    if way_back is not None and not way_back.done:
        yield f"the rollback from {way_back.left} to {way_back.to} was begun and is not finished"
    if record is not None and record.phase is Phase.ROLLING_BACK:
        yield f"the rollback of the canary of {record.release_id} was begun and is not finished"
    if production is None:
        return
    if serves.get(production.slot) != production.repository.digest:
        found = serves.get(production.slot)
        what = f"serves {found[:12]}" if found else "has no server"
        yield f"production is {production.release_id} in {production.slot}, but that slot {what}"
    if traffic is not None and traffic.standby is not None and not _may_stand_by(state, record, traffic, serves):
        yield f"the router uses {traffic.standby} as production's standby, and that slot serves no previous version"
    if traffic is not None and not is_moving(record, production):
        yield from _elsewhere(production, traffic)


def _may_stand_by(
    state: PlaceState, record: CanaryRecord | None, traffic: RouteState, serves: Mapping[SlotName, str | None]
) -> bool:
    """Whether the standby is the previous version, or a candidate whose canary is still running."""
    allowed = {None, state.way_back_to.repository.digest if state.way_back_to else None}
    if record is not None and not record.settled and record.candidate == traffic.standby:
        allowed.add(record.repository.digest)
    return traffic.standby is not None and serves.get(traffic.standby) in allowed


def is_moving(record: CanaryRecord | None, production: Pointer) -> bool:
    """Whether a canary may have traffic: it has not ended, or it was promoted and is not settled yet."""
    if record is None or record.phase is Phase.ROLLED_BACK:
        return False
    return record.phase is not Phase.PROMOTED or record.production_since == production.promoted_at


def _elsewhere(production: Pointer, traffic: RouteState) -> Iterator[str]:
    share = traffic.weights.get(production.slot, 0)
    if share != ALL or traffic.candidate is not None:
        yield (
            f"production is {production.release_id} in {production.slot}, but the router sends it "
            f"{share / 100:g} % of the traffic (set by {traffic.owner})"
        )

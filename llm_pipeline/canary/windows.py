"""What a look at live traffic counts: both arms' requests, errors and slow answers in one window."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.slow_limits import NONE_SLOW, SlowCounts, Thresholds, beyond
from llm_pipeline.stages.contract import Frozen


class ArmCounts(Frozen):
    """One arm in one window, or over one step."""

    requests: int = 0
    errors: int = 0
    faults: int = 0
    lost: int = 0
    answered: int = 0
    slow: SlowCounts = NONE_SLOW
    streams: int = 0
    slow_streams: SlowCounts = NONE_SLOW

    def plus(self, other: ArmCounts) -> ArmCounts:
        """Both together."""
        return ArmCounts(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            faults=self.faults + other.faults,
            lost=self.lost + other.lost,
            answered=self.answered + other.answered,
            slow=_added(self.slow, other.slow),
            streams=self.streams + other.streams,
            slow_streams=_added(self.slow_streams, other.slow_streams),
        )


class Window(Frozen):
    """Both arms between two looks.

    Attributes:
        trailing_faults: Candidate faults in a row at the window's end.
        all_faults: Every candidate request of the window was a fault, so the run of the last window goes on.
    """

    candidate: ArmCounts
    stable: ArmCounts
    trailing_faults: int
    all_faults: bool


def window(requests: Sequence[ObservedRequest], candidate: SlotName, thresholds: Thresholds, since: float) -> Window:
    """Count both arms over requests that started at or after `since` (before it, another split was in force)."""
    current = sorted((r for r in requests if r.started_at >= since), key=lambda request: request.started_at)
    mine = [request for request in current if request.arm == candidate]
    trailing = 0
    for request in reversed(mine):
        if not request.fault:
            break
        trailing += 1
    return Window(
        candidate=_count(mine, thresholds),
        stable=_count([request for request in current if request.arm != candidate], thresholds),
        trailing_faults=trailing,
        all_faults=trailing == len(mine),
    )


def _count(requests: Sequence[ObservedRequest], thresholds: Thresholds) -> ArmCounts:
    answered = [request for request in requests if not request.error and not request.cancelled]
    first = [r.first_byte_milliseconds for r in answered if r.streaming and r.first_byte_milliseconds is not None]
    limit = thresholds.first_token_milliseconds
    return ArmCounts(
        requests=len(requests),
        errors=sum(request.error for request in requests),
        faults=sum(request.fault for request in requests),
        lost=sum(request.lost for request in requests),
        answered=len(answered),
        slow=beyond([request.total_milliseconds for request in answered], thresholds.end_to_end_milliseconds),
        streams=len(first),
        slow_streams=NONE_SLOW if limit is None else beyond(first, limit),
    )


def _added(mine: SlowCounts, theirs: SlowCounts) -> SlowCounts:
    return tuple(a + b for a, b in zip(mine, theirs, strict=True))

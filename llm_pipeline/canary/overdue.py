"""Whether a canary without a controller has waited too long."""

from __future__ import annotations

from llm_pipeline.canary.approvals import StepApproval
from llm_pipeline.canary.record import CanaryRecord, Phase


def overdue(
    record: CanaryRecord, approval: StepApproval | None, *, silent_seconds: float, now: float
) -> tuple[bool, str]:
    """Whether an unfinished canary without a controller must be rolled back, and why, or why not.

    Args:
        record: The canary.
        approval: The question about its next step, or about its pause.
        silent_seconds: For how long nothing was heard of whoever drove it.
        now: Seconds since 1970.
    """
    if record.phase is Phase.ROLLING_BACK:
        return True, "its rollback was begun and nobody continues it"
    if approval is not None and approval.answer == "denied" and record.phase in (Phase.PAUSED, Phase.PASSED):
        return True, f"{approval.by} denied step {approval.percent:g} %"
    if record.phase is Phase.PAUSED and record.pause is not None:
        over = record.pause.over(now)
        return over, f"it was paused ({record.pause.reason}) and nobody answered in time" if over else "it is paused"
    if record.phase is Phase.PASSED and approval is not None and _may_wait(approval, now):
        return False, "its next step waits for a person"
    over = silent_seconds > record.rules.unwatched_seconds
    return over, f"no controller gave a sign of life for {silent_seconds:.0f} s while it was {record.phase}"


def _may_wait(approval: StepApproval, now: float) -> bool:
    """Whether a canary between two steps may wait for the answer; once there is one, for whoever acts on it."""
    return approval.answer == "waiting" and now - (approval.asked_at or 0.0) <= approval.deadline_seconds

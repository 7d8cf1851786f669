"""What a controller asks people about its canary: whether a step may begin, and what becomes of one that waits."""

from __future__ import annotations

import time

from llm_pipeline.canary import approvals
from llm_pipeline.canary.approvals import StepApproval
from llm_pipeline.canary.plan import CanaryPlan
from llm_pipeline.canary.record import CanaryRecord, Pause, PauseReason
from llm_pipeline.store.artifact_store import ArtifactStore


class Questions:
    """The questions of one plan, in its store."""

    def __init__(self, store: ArtifactStore, plan: CanaryPlan) -> None:
        self._store = store
        self._plan = plan

    def ask(self, record: CanaryRecord, percent: float, reason: PauseReason, *, anew: bool = False) -> StepApproval:
        """Put the question, or find it as it stands; `anew` does not take an earlier answer for this one's."""
        begin = reason is PauseReason.APPROVAL
        why = "the step needs an approval" if begin or record.judgement is None else record.judgement.summary
        return approvals.ask(
            self._store,
            self._plan.release_id,
            self._plan.target,
            percent,
            runs=[self._plan.run, *approvals.runs_of(record)],
            question="begin" if begin else "go on",
            summary=f"{why}. {self.command(percent)}",
            deadline_seconds=self._plan.policy.pause_deadline_seconds,
            anew=anew,
        )

    def answer(self, record: CanaryRecord, pause: Pause) -> StepApproval:
        """The question that a canary waits for; closed when it waited for too long."""
        approval, now = self.ask(record, pause.percent, pause.reason), time.time()
        if approval.answer != "waiting" or not (pause.over(now) or approval.overdue(now)):
            return approval
        closed = approvals.time_out(self._store, self._plan.release_id, self._plan.target, pause.percent)
        return closed or approval

    def command(self, percent: float) -> str:
        """What a person types to answer."""
        return f"llm-pipeline approve-step {self._plan.release_id} {self._plan.target} {percent:g} [--deny]"

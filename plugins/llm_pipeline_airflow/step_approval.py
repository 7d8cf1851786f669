"""The human decision between two steps of a canary."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from llm_pipeline.base.untrusted_text import markdown
from llm_pipeline.flow import ReleaseProgress
from llm_pipeline.questions import replaces_nothing
from llm_pipeline.release.evidence_text import facts_table
from llm_pipeline.release.tasks import canary_subject
from llm_pipeline_airflow.approvals import DecisionOperator, was_found_in_store, who_answered
from llm_pipeline_airflow.decision_trigger import awaited_answer
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.notifications import page_of, tell
from llm_pipeline_airflow.promotion import PromotionOrder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.canary.approvals import StepApproval

log = get_logger(__name__)


class StepApprovalOperator(DecisionOperator):
    """Asks a human before one step, showing what the step before it measured; a denial ends the promotion.

    The answer is a document in the store, which the controller and the guard go by: the first answer wins, whether it
    was given here or on the command line, and one that comes when the canary was rolled back changes nothing. The claim
    on the model is kept meanwhile, for the candidate has traffic.

    Args:
        target: The target's name.
        step: The step's percentage.
        before: The step before it; None when it is the first.
        turn: Whether the promotion may begin at all, for a first step.
    """

    template_fields: Collection[str] = (*DecisionOperator.template_fields, "target")
    parks = False

    def __init__(self, *, target: str, step: float, before: float | None, turn: PromotionOrder, **kwargs: Any) -> None:
        super().__init__(subject=f"Go on to {step:g} %?", **kwargs)
        self.target = target
        self.step = step
        self.before = before
        self.turn = turn

    @property
    def label(self) -> str:
        """What the UI shows for this task instance."""
        return self.target

    def execute(self, context: Context) -> Any:
        """Put the question, and wait; a first deployment is compared with nothing, so nobody is asked."""
        from llm_pipeline.canary.approvals import approval_name

        self.turn.check(context, self.target, self.flow)
        flow = self.flow()
        if replaces_nothing(flow, self.target):
            log.info("there is nothing to compare %s with: no question is asked", flow.record.release_id)
            return None
        approval = self._question(flow)
        if approval.answer != "waiting":
            return self._obey(approval)
        self.subject = f"Move {self.step:g} % of {self.target} to {flow.record.release_id}?"
        self.body = self._body(flow)
        name = approval_name(flow.record.release_id, self._place(flow), self.step)
        question = {"run": approval.run, "question": approval.question}
        return self.ask(context, awaited_answer(flow.deployment, name, question))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer down, and act on the one that counts."""
        from llm_pipeline.canary import approvals
        from llm_pipeline.operations.approval import answer

        self.check_claim(context)
        flow = self.flow()
        if event.get("timedout"):
            approval = approvals.time_out(flow.store, flow.record.release_id, self._place(flow), self.step)
        elif was_found_in_store(event):
            approval = approvals.read_approval(flow.store, flow.record.release_id, self._place(flow), self.step)
        else:
            told = answer(
                flow.store,
                flow.record.release_id,
                self._place(flow),
                self.step,
                approved=event["chosen_options"] == [self.APPROVE],
                by=who_answered(event),
                run=flow.resolved_at.isoformat(),
            )
            approval = told.approval
        tell(flow.deployment, self._place(flow), flow.record.release_id, link=page_of(context))
        return self._obey(approval)

    def _place(self, flow: ReleaseProgress) -> str:
        return flow.record.place_of(self.target)

    def _question(self, flow: ReleaseProgress) -> StepApproval:
        from llm_pipeline.canary import approvals

        return approvals.ask(
            flow.store,
            flow.record.release_id,
            self._place(flow),
            self.step,
            runs=[flow.resolved_at.isoformat()],
            question="begin",
            summary=f"step {self.step:g} % begins after an approval in Airflow",
            deadline_seconds=self.response_timeout.total_seconds() if self.response_timeout else 0.0,
        )

    @property
    def answer_command(self) -> str:
        """See `DecisionOperator`."""
        place = self.flow().record.place_of(self.target)
        return f"llm-pipeline approve-step {self.release_id} {place} {self.step:g} [--deny]"

    def _obey(self, approval: StepApproval | None) -> None:
        if approval is not None:
            self.subject = f"{self.step:g} % of {self.target}"
            self._answer = (approval.answer, approval.by)
        if approval is None or approval.answer != "approved":
            what = approval.answer if approval else "not asked"
            raise AirflowFailException(f"step {self.step:g} % of {self.target}: {what}; the canary is rolled back")
        log.info("step %g %% was approved by %s", self.step, approval.by)

    def _body(self, flow: ReleaseProgress) -> str:
        lines = [f"Release {markdown(flow.record.release_id)} on {markdown(self.target)}.", ""]
        result = flow.find("canary", canary_subject(self.target, self.before)) if self.before is not None else None
        if result is not None and result.judgement is not None:
            lines += [
                f"**Step {self.before:g} %: {result.judgement.verdict}.** {markdown(result.judgement.summary)}",
                "",
            ]
            lines += [facts_table(result.judgement), ""]
        share = f"{self.before:g} %" if self.before is not None else "no traffic"
        return "\n".join(
            [*lines, f"It has {share} now, and keeps it meanwhile. **Reject**, or no answer in time, rolls it back."]
        )

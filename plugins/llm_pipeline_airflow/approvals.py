"""The human decisions of a release, in Airflow's form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import Lines
from llm_pipeline.flow import ReleaseProgress
from llm_pipeline.notifications.happened import answered, asked
from llm_pipeline.questions import question_of, shown_by
from llm_pipeline.release.flow import step_named
from llm_pipeline_airflow.claim import claim_of
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.decision_trigger import AwaitedAnswer, DecisionTrigger, awaited_answer
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.notifications import ReleaseNotifier, attempt_of, reminder_of
from llm_pipeline_airflow.operators import RELEASE_ID_TEMPLATE
from llm_pipeline_airflow.states import require_any

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.notifications.event import Event, Origin
    from llm_pipeline.operations.decisions import Decision
    from llm_pipeline_airflow.notifications import Happened

log = get_logger(__name__)

_REMINDED_AFTER = 0.75
"""The part of the time to answer after which people are told again."""

_FOR_THE_TRIGGER = timedelta(minutes=10)
"""The trigger has so much longer than the human; without a triggerer Airflow fails the task then."""


class DecisionOperator(ApprovalOperator):
    """Asks a human and waits without a worker; no answer in time is a rejection, which skips what follows.

    The answer may come from Airflow's form, from the command line or from a terminal.

    Args:
        config_path: The release config.
        timeout_hours: Time to answer.
        release_id: The release; by default what the task `resolve` returned.
    """

    template_fields: Collection[str] = ("subject", "body", "release_id")
    parks = True
    """Whether it computes and serves nothing meanwhile: not where traffic was moved."""

    def __init__(
        self, *, config_path: str, timeout_hours: float, release_id: str = RELEASE_ID_TEMPLATE, **kwargs: Any
    ) -> None:
        timeout = timedelta(hours=timeout_hours)
        super().__init__(defaults=self.REJECT, response_timeout=timeout, notifiers=[ReleaseNotifier("asked")], **kwargs)
        self.config_path = config_path
        self.release_id = release_id
        self._answer: tuple[str, str] | None = None

    def flow(self) -> ReleaseProgress:
        """The release that is decided about."""
        return ReleaseProgress.open(config_with_secrets(self.config_path).deployment, self.release_id)

    def ask(self, context: Context, awaited: AwaitedAnswer) -> Any:
        """Write the request, then wait for an answer in Airflow's form or in the store."""
        if self.parks:
            try:
                claim_of(config_with_secrets(self.config_path), context).park()
            except Terminal as error:
                raise AirflowFailException(error.told) from error
        else:
            self.check_claim(context)
        log.info("%s", Lines(f"asking for a decision:\n{self.body}"))
        try:
            return super().execute(context)
        except TaskAwaitingInput as wait:  # of Airflow's form alone: the answers in the store would not be seen
            timeout, now = self.response_timeout or timedelta(0), datetime.now(UTC)
            trigger = DecisionTrigger(
                ti_id=str(context["ti"].id),
                awaited=awaited.model_dump_json(),
                yes=self.APPROVE,
                no=self.REJECT,
                until=(now + timeout).isoformat(),
                reminder=reminder_of(context),
                remind_at=(now + _REMINDED_AFTER * timeout).isoformat(),
            )
            self.defer(trigger=trigger, method_name=wait.method_name, timeout=timeout + _FOR_THE_TRIGGER)

    @property
    def answer_command(self) -> str:
        """What a person types to answer, besides Airflow's form; empty where only the form is there."""
        return ""

    def events_of(self, origin: Origin, happened: Happened, context: Context) -> tuple[Event, ...] | None:
        """The question, and its answer; see `TellingOperator`."""
        key, subject = attempt_of(context), str(getattr(self, "target", ""))
        if happened == "asked":
            page = self.generate_link_to_ui(task_instance=context["ti"]) if origin.link else ""
            command = f", or `{self.answer_command}`" if self.answer_command else ""
            until = datetime.now(UTC) + self.response_timeout if self.response_timeout else None
            action = f"approve or reject it in Airflow (Required Actions){command}."
            return (
                asked(replace(origin, link=page), self.subject, key=key, subject=subject, until=until, action=action),
            )
        if self._answer is None:
            return None
        answer, by = self._answer
        return (answered(origin, self.subject, key=key, subject=subject, answer=answer, by=by),)

    def check_claim(self, context: Context) -> None:
        """Make sure that this release may still go on.

        Raises:
            AirflowFailException: It may not.
        """
        try:
            claim_of(config_with_secrets(self.config_path), context).check()
        except Terminal as error:
            raise AirflowFailException(error.told) from error

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Act on the answer, if this release may still go on."""
        self.check_claim(context)
        return super().execute_complete(context, event)


class QuestionOperator(DecisionOperator):
    """Asks a human the question of a step of the flow; goes on by itself when there is nothing to ask this time.

    Args:
        step: Name of the step.
        target: The target that it is about, in a group that is mapped over targets.
        gates: Task ids of the gates that a target must have passed in this run to be asked about.
        any_of: Task ids of which one instance must have succeeded, though the trigger rule lets this one run.
    """

    template_fields: Collection[str] = (*DecisionOperator.template_fields, "target")

    def __init__(
        self,
        *,
        step: str,
        target: str = "",
        gates: tuple[str, ...] = (),
        any_of: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(subject=kwargs.get("task_display_name", step), **kwargs)
        self.step = step
        self.target = target
        self.gates = gates
        self.any_of = any_of
        self._told = False

    @property
    def label(self) -> str:
        """What the UI shows for this task instance."""
        return self.target or self.task_display_name

    @property
    def answer_command(self) -> str:
        """Of a question that is put once; see `DecisionOperator`."""
        return "" if self.target else f"llm-pipeline approve {self.release_id} [--deny]"

    def events_of(self, origin: Origin, happened: Happened, context: Context) -> tuple[Event, ...] | None:
        """The question, and its answer; people were told already why there is nothing to ask about."""
        return super().events_of(origin, happened, context) if not self._told else ()

    def execute(self, context: Context) -> Any:
        """Ask, if there is something to decide that nobody has decided yet."""
        from llm_pipeline.operations.decisions import decision_name, put

        self._told = True
        if not (self.gates and passed_targets(context, self.gates)):
            require_any(context, self.any_of)
        self._told = False
        flow, step = self.flow(), step_named(self.step)
        if step is None:
            raise AirflowFailException(f"the flow has no step {self.step} any more")
        if not step.asked(flow.release, None):
            log.info("the release config wants nobody to be asked")
            return None
        if shown := shown_by(step, flow):
            log.info("%s", Lines(shown))
        targets = self._targets(context)
        question = question_of(step)(flow, targets)
        if question is None:
            log.info("there is nothing to decide this time: nobody is asked")
            return None
        decision = put(flow, self.step, targets, question, target=self.target)
        if decision.answer != "waiting":
            log.info("%s by %s before it was asked", decision.answer, decision.by)
            return self._act_on(context, decision, {"responded_at": datetime.now(UTC), "responded_by_user": None})
        self.subject, self.body = question.title, question.body
        name = decision_name(flow.record.release_id, self.step, self.target)
        same = {"run": decision.run, "evidence": decision.evidence}
        return self.ask(context, awaited_answer(flow.deployment, name, same))

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer down, and act on the one that counts; no answer in time is a rejection."""
        if "error" in event:
            return super().execute_complete(context, event)
        self.check_claim(context)
        decision = self._decision(context, event)
        log.info("%s by %s", decision.answer, decision.by)
        return self._act_on(context, decision, event)

    def _decision(self, context: Context, event: dict[str, Any]) -> Decision:
        from llm_pipeline.operations.decisions import decide, read_decision

        flow = self.flow()
        known = read_decision(flow, self.step, self.target) if was_found_in_store(event) else None
        if known is not None and known.answer != "waiting":
            return known
        approved = event["chosen_options"] == [self.APPROVE]
        by = "nobody, in time" if event.get("timedout") else who_answered(event)
        return decide(flow, self.step, self._targets(context), approved=approved, by=by, target=self.target).decision

    def _act_on(self, context: Context, decision: Decision, event: dict[str, Any]) -> Any:
        self.subject, self._answer = decision.question, (decision.answer, decision.by)
        chosen = [self.APPROVE if decision.answer == "approved" else self.REJECT]
        return super().execute_complete(context, {"params_input": None, **event, "chosen_options": chosen})

    def _targets(self, context: Context) -> Sequence[str]:
        if self.target:
            return [self.target]
        return passed_targets(context, self.gates) if self.gates else self.flow().targets


def was_found_in_store(event: dict[str, Any]) -> bool:
    """Whether somebody answered outside of Airflow: an answer in its form names a user."""
    return event.get("responded_by_user") is None and not event.get("timedout")


def who_answered(event: dict[str, Any]) -> str:
    """The user who answered in Airflow."""
    user = event.get("responded_by_user")
    named = user.get("name") if isinstance(user, dict) else getattr(user, "name", None)
    return str(named or "Airflow")


def passed_targets(context: Context, gates: tuple[str, ...]) -> list[str]:
    """Targets whose gates ended well in this run; Airflow drops the XCom of a gate that is run again."""
    first, *others = (_subjects(context, gate) for gate in gates)
    return [target for target in first if all(target in passed for passed in others)]


def _subjects(context: Context, gate: str) -> list[str]:
    returned = context["ti"].xcom_pull(task_ids=gate)  # all map indexes; one alone comes without its list
    results = returned if isinstance(returned, list) else [returned]
    return [result["subject"] for result in results if result]

"""The human decisions of a release, in Airflow's form; they may be answered on the command line as well.

An answer in Airflow's form resumes the task by itself. One that is given by `llm-pipeline approve` or in a terminal is
only a document in the store: `DecisionTrigger` sees it there and closes the form, which would stay open otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.providers.standard.triggers.hitl import HITLTriggerEventSuccessPayload
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowRuntimeError, TaskAwaitingInput
from airflow.sdk.execution_time.hitl import update_hitl_detail_response
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from pydantic import Field

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import Lines
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.untrusted_text import markdown
from llm_pipeline.canary import people
from llm_pipeline.canary.record import Phase, read_canary_record
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.store import Store
from llm_pipeline.notifications.telling import Event, Origin, answered, asked, tell_canary
from llm_pipeline.operations.decisions import decide, put, read_decision
from llm_pipeline.questions import approval_facts, planned_text, question_of, replaced, replaces_nothing
from llm_pipeline.release.decision import Decision, decision_name
from llm_pipeline.release.evidence_text import facts_table
from llm_pipeline.release.flow import APPROVAL
from llm_pipeline.release.tasks import canary_subject
from llm_pipeline.release_progress import ReleaseProgress, placement
from llm_pipeline.runners.runner import Runners
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import StepApproval, place_name, read_place
from llm_pipeline_airflow.claim import claim_of
from llm_pipeline_airflow.connections import config_with_secrets, fetch_secrets
from llm_pipeline_airflow.faults import contained, get_logger
from llm_pipeline_airflow.links import page_of, report_page
from llm_pipeline_airflow.operators import RELEASE_ID_TEMPLATE
from llm_pipeline_airflow.states import passed_targets, require_begun
from llm_pipeline_airflow.task_endings import Happened, ReleaseNotifier, refused

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.release.tasks import Task

log = get_logger(__name__)

LOOK_SECONDS = 5.0
"""Between two reads of the document: one small read for each question that is open."""

_TARGETS = "targets"
"""The field of the form in which a person takes targets."""
_FOR_THE_TRIGGER = timedelta(minutes=10)
"""The trigger has so much longer than the human; without a triggerer Airflow fails the task then."""


class AwaitedAnswer(Frozen):
    """Where an answer will be written, and to which question.

    Attributes:
        store: The store; the triggerer may have no other file of the release.
        document: Its name there.
        question: Fields that tell this question from others in the same document.
        place: Of a question about a canary's step, which stands among others in its place's document; else empty.
        connections: Airflow connections that hold what the store asks for, by variable.
    """

    store: Store
    document: str
    question: dict[str, str | float]
    place: str = ""
    connections: dict[str, str] = Field(default={})

    @classmethod
    def of(cls, deployment: Deployment, **awaited: Any) -> AwaitedAnswer:
        """An answer in a deployment's store."""
        return cls(store=deployment.store, connections=deployment.airflow_connections, **awaited)

    def found(self, value: Mapping[str, Any]) -> bool | None:
        """Whether a document approves; None while it answers nothing, or another question."""
        for one in value["approvals"] if self.place else (value,):
            same = all(one.get(name) == wanted for name, wanted in self.question.items())
            if same and one.get("answer") not in (None, "waiting"):
                return bool(one["answer"] == "approved")
        return None

    def withdrawn(self, store: ArtifactStore) -> bool:
        """Whether the canary that is asked about was rolled back meanwhile."""
        if not self.place:
            return False
        canary = read_canary_record(store, str(self.question["release_id"]), self.place)
        if canary is None or canary.phase not in (Phase.ROLLING_BACK, Phase.ROLLED_BACK):
            return False
        return self.question["run"] in people.runs_of(canary)


class DecisionTrigger(BaseTrigger):
    """Fires the event of an answered form once the store has the answer, or when the time to answer is over.

    Args:
        ti_id: The waiting task instance.
        awaited: An `AwaitedAnswer` as JSON.
        until: When the time is over, in ISO 8601.
    """

    def __init__(self, *, ti_id: str, awaited: str, until: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ti_id, self.until = str(ti_id), until
        self._json = awaited
        self.awaited = AwaitedAnswer.model_validate_json(awaited)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments; see `BaseTrigger`."""
        arguments = {"ti_id": self.ti_id, "awaited": self._json, "until": self.until}
        return "llm_pipeline_airflow.approvals.DecisionTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every few seconds; a store that cannot be read now is asked again."""
        approved, until = None, datetime.fromisoformat(self.until)
        while approved is None and datetime.now(UTC) < until:
            await asyncio.sleep(LOOK_SECONDS)
            with contained(f"reading {self.awaited.document}", "cannot read whether the question was answered"):
                if self.awaited.connections:
                    await sync_to_async(fetch_secrets)(self.awaited.connections)
                approved = await asyncio.to_thread(self._look)
        chosen = [ApprovalOperator.APPROVE if approved else ApprovalOperator.REJECT]
        await self._close_form(chosen)
        yield TriggerEvent(  # type: ignore[no-untyped-call]
            HITLTriggerEventSuccessPayload(
                chosen_options=chosen,
                params_input={},
                responded_by_user=None,
                responded_at=datetime.now(UTC),
                timedout=approved is None,
            )
        )

    @cached_property
    def _store(self) -> ArtifactStore:
        return open_store(self.awaited.store)

    def _look(self) -> bool | None:
        document = self._store.read_document(self.awaited.document)
        found = self.awaited.found(document.value) if document is not None else None
        return False if found is None and self.awaited.withdrawn(self._store) else found

    async def _close_form(self, chosen: list[str]) -> None:
        """Answer the form, so that nobody is asked any more."""
        try:
            await sync_to_async(update_hitl_detail_response)(UUID(self.ti_id), chosen, {})
        except AirflowRuntimeError as error:  # somebody answered it at this very moment
            log.info("the form was not closed: %s", error)


class DecisionOperator(ApprovalOperator):
    """Asks a human and waits without a worker; no answer in time is a denial, which fails the task and so the run.

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
        self.check_claim(context, parks=self.parks)
        log.info("%s", Lines(f"asking for a decision:\n{self.body}"))
        try:
            return super().execute(context)
        except TaskAwaitingInput as wait:  # of Airflow's form alone: the answers in the store would not be seen
            timeout, now = self.response_timeout or timedelta(0), datetime.now(UTC)
            trigger = DecisionTrigger(
                ti_id=str(context["ti"].id), awaited=awaited.model_dump_json(), until=(now + timeout).isoformat()
            )
            self.defer(trigger=trigger, method_name=wait.method_name, timeout=timeout + _FOR_THE_TRIGGER)

    @property
    def answer_command(self) -> str:
        """What a person types to answer, besides Airflow's form; empty where only the form is there."""
        return ""

    def events_of(self, origin: Origin, happened: Happened, context: Context) -> tuple[Event, ...] | None:
        """The question, and its answer; see `ReleaseNotifier`."""
        subject = str(getattr(self, "target", ""))
        if happened == "asked":
            page = self.generate_link_to_ui(task_instance=context["ti"]) if origin.link else ""
            command = f", or `{self.answer_command}`" if self.answer_command else ""
            until = datetime.now(UTC) + self.response_timeout if self.response_timeout else None
            action = f"approve or reject it in Airflow (Required Actions){command}."
            return (asked(replace(origin, link=page), self.subject, subject=subject, until=until, action=action),)
        if self._answer is None:
            return None
        answer, by = self._answer
        return (answered(origin, self.subject, subject=subject, answer=answer, by=by),)

    def check_claim(self, context: Context, *, parks: bool = False) -> None:
        """Make sure that this release may still go on, and record whether it waits for a person.

        Raises:
            Refused: It may not.
        """
        claim = claim_of(config_with_secrets(self.config_path), context)
        try:
            if parks:
                claim.park()
            else:
                claim.check()
        except Terminal as error:
            raise refused(context, error.told) from error

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Act on the answer, if this release may still go on."""
        self.check_claim(context)
        return super().execute_complete(context, event)


class QuestionOperator(DecisionOperator):
    """Asks a human the question of a step of the flow; goes on by itself when there is nothing to ask this time.

    Args:
        flow_task: The task of the flow; a target must have passed its gates in this run to be asked about.
    """

    def __init__(self, *, flow_task: Task, **kwargs: Any) -> None:
        super().__init__(subject=flow_task.title, **kwargs)
        self.flow_task = flow_task
        self.step = flow_task.step.name
        self._told = False

    @property
    def label(self) -> str:
        """What the UI shows for this task instance."""
        return str(self.task_display_name)

    @property
    def answer_command(self) -> str:
        """See `DecisionOperator`."""
        return f"llm-pipeline approve {self.release_id} [--deny]"

    def events_of(self, origin: Origin, happened: Happened, context: Context) -> tuple[Event, ...] | None:
        """The question, and its answer; people were told already why there is nothing to ask about."""
        return super().events_of(origin, happened, context) if not self._told else ()

    def execute(self, context: Context) -> Any:
        """Ask, if there is something to decide that nobody has decided yet."""
        self._told = True
        if not (self.flow_task.gates and passed_targets(context, self.flow_task.gates)):
            require_begun(context, self.flow_task, "", self.flow)
        self._told = False
        flow, targets = self.flow(), self._targets(context)
        if self.step == "plan":
            log.info("%s", Lines(planned_text(flow)))
        question = question_of(self.step, flow, targets)
        if question is None:
            log.info("there is nothing to decide this time: nobody is asked")
            return None
        decision = put(flow, self.step, targets, question)
        if decision.answer != "waiting":
            log.info("it was answered before it was asked")
            return self._act_on(context, decision, {"responded_at": datetime.now(UTC), "responded_by_user": None})
        self.subject, self.body = question.title, question.body
        if self.step == APPROVAL:
            if len(targets) > 1:
                words = "Take a target out to leave what serves there."
                offered = Param([*targets], type="array", examples=[*targets], title="Targets", description=words)
                self.params = ParamsDict({_TARGETS: offered})
            self._write_draft(flow)
            self.body += f"\n\n{approval_facts(flow, targets)}\n\n{self._links(context, flow, targets)}"
        name = decision_name(flow.record.release_id, self.step)
        same = {"run": decision.run, "evidence": decision.evidence}
        return self.ask(context, AwaitedAnswer.of(flow.deployment, document=name, question=same))

    def _write_draft(self, flow: ReleaseProgress) -> None:
        """Write the release's report as far as it goes, for whoever decides; the question waits for none that fails."""
        with contained("writing the draft of the report", "there is no draft of the report"):
            runner, request = Runners(flow.deployment), flow.request("report")
            job = runner.submit(request, placement(request))
            while runner.is_active(job):
                time.sleep(1.0)
            runner.outcome(job)

    def _links(self, context: Context, flow: ReleaseProgress, targets: Sequence[str]) -> str:
        """The draft of the report, and what this release differs in from those that it replaces."""
        links = [f"[Report, as far as the release is]({report_page(context['ti'].dag_id, context['ti'].run_id)})"]
        for release_id in dict.fromkeys(replaced(flow, targets).values()):
            compare = urlencode({"release": [flow.record.release_id, release_id]}, doseq=True)
            links.append(f"[Comparison with {markdown(release_id)}](llm-pipeline/compare?{compare})")
        return " · ".join(links)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer down, and act on the one that counts."""
        if "error" in event:
            return super().execute_complete(context, event)
        self.check_claim(context)
        decision = self._decision(context, event)
        return self._act_on(context, decision, event)

    def _decision(self, context: Context, event: dict[str, Any]) -> Decision:
        flow = self.flow()
        known = read_decision(flow, self.step) if was_found_in_store(event) else None
        if known is not None and known.answer != "waiting":
            return known
        approved = event["chosen_options"] == [self.APPROVE]
        by, targets = "" if event.get("timedout") else who_answered(event), self._targets(context)
        chosen = (event.get("params_input") or {}).get(_TARGETS)
        taken = [target for target in targets if target in chosen] if chosen is not None else []
        if chosen is not None and not taken:
            approved = False
        return decide(flow, self.step, targets, approved=approved, by=by, taken=taken).decision

    def _act_on(self, context: Context, decision: Decision, event: dict[str, Any]) -> Any:
        self.subject, self._answer = decision.question, (decision.answer, decision.by)
        if decision.refused:
            raise refused(context, f"{decision.in_words}: {decision.question}")
        log.info("%s", decision.in_words)
        return super().execute_complete(context, {"params_input": None, **event, "chosen_options": [self.APPROVE]})

    def _targets(self, context: Context) -> Sequence[str]:
        gates = self.flow_task.gates
        return passed_targets(context, gates) if gates else self.flow().targets


class StepApprovalOperator(DecisionOperator):
    """Asks a human before one step, showing what the step before it measured; a denial ends the promotion.

    The answer is a document in the store, which the controller and the guard go by: the first answer wins, whether it
    was given here or on the command line, and one that comes when the canary was rolled back changes nothing. The claim
    on the model is kept meanwhile, for the candidate has traffic.

    Args:
        target: The target's name.
        step: The step's percentage.
        before: The step before it; None when it is the first.
        flow_task: The task of the flow.
    """

    template_fields: Collection[str] = (*DecisionOperator.template_fields, "target")
    parks = False

    def __init__(self, *, target: str, step: float, before: float | None, flow_task: Task, **kwargs: Any) -> None:
        super().__init__(subject=f"Go on to {step:g} %?", **kwargs)
        self.target = target
        self.step = step
        self.before = before
        self.flow_task = flow_task

    @property
    def label(self) -> str:
        """What the UI shows for this task instance."""
        return self.target

    def execute(self, context: Context) -> Any:
        """Put the question, and wait; a first deployment is compared with nothing, so nobody is asked."""
        require_begun(context, self.flow_task, self.target, self.flow)
        flow = self.flow()
        if replaces_nothing(flow, self.target):
            log.info("there is nothing to compare %s with: no question is asked", flow.record.release_id)
            return None
        place = self._place(flow)
        asked = StepApproval(
            release_id=flow.record.release_id,
            run=flow.resolved_at.isoformat(),
            percent=self.step,
            question="begin",
            asked_at=time.time(),
            deadline_seconds=self.response_timeout.total_seconds() if self.response_timeout else 0.0,
        )
        approval = people.ask(flow.store, place, asked)
        if approval.answer != "waiting":
            return self._obey(context, approval)
        self.subject = f"Move {self.step:g} % of {self.target} to {flow.record.release_id}?"
        self.body = self._body(flow)
        question = approval.model_dump(mode="json", include={"release_id", "run", "percent", "question"})
        awaited = AwaitedAnswer.of(flow.deployment, document=place_name(place), question=question, place=place)
        return self.ask(context, awaited)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Write the answer down, and act on the one that counts."""
        self.check_claim(context)
        flow = self.flow()
        asked = (flow.store, flow.record.release_id, self._place(flow), self.step)
        approval: StepApproval | None
        if was_found_in_store(event):
            approval = read_place(flow.store, self._place(flow)).approval(flow.record.release_id, self.step)
        else:
            approved, by = event["chosen_options"] == [self.APPROVE], who_answered(event)
            if event.get("timedout"):
                approved, by = None, "nobody"
            approval = people.answer(*asked, approved=approved, by=by, run=flow.resolved_at.isoformat()).approval
        tell_canary(flow.deployment, self._place(flow), flow.record.release_id, link=page_of(context))
        return self._obey(context, approval)

    def _place(self, flow: ReleaseProgress) -> str:
        return flow.record.place_of(self.target)

    @property
    def answer_command(self) -> str:
        """See `DecisionOperator`."""
        return f"llm-pipeline approve-step {self.release_id} {self._place(self.flow())} {self.step:g} [--deny]"

    def _obey(self, context: Context, approval: StepApproval | None) -> None:
        if approval is not None:
            self.subject = f"{self.step:g} % of {self.target}"
            self._answer = (approval.answer, approval.by)
        if approval is None or approval.answer != "approved":
            told = str(approval.answer) if approval is not None else "waiting"
            what = told.replace("waiting", "withdrawn")  # for its canary was rolled back
            raise refused(context, f"step {self.step:g} % of {self.target}: {what}; the canary is rolled back")
        log.info("step %g %% was approved by %s", self.step, approval.by)

    def _body(self, flow: ReleaseProgress) -> str:
        lines = [f"Release {markdown(flow.record.release_id)} on {markdown(self.target)}.", ""]
        result = flow.find("canary", canary_subject(self.target, self.before)) if self.before is not None else None
        judged = result.judgement if result is not None else None
        if judged is not None:
            lines += [f"**Step {self.before:g} %: {judged.verdict}.** {markdown(judged.summary)}", ""]
            lines += [facts_table(judged), ""]
        share = f"{self.before:g} %" if self.before is not None else "no traffic"
        lines.append(f"It has {share} now, and keeps it meanwhile. **Reject**, or no answer in time, rolls it back.")
        return "\n".join(lines)


def was_found_in_store(event: dict[str, Any]) -> bool:
    """Whether somebody answered outside of Airflow: an answer in its form names a user."""
    return event.get("responded_by_user") is None and not event.get("timedout")


def who_answered(event: dict[str, Any]) -> str:
    """The user who answered in Airflow."""
    user = event.get("responded_by_user")
    named = user.get("name") if isinstance(user, dict) else getattr(user, "name", None)
    return str(named or "Airflow")

"""The human decisions of a release: about a changed licence, and before production."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.exceptions import AirflowFailException

from llm_pipeline.accuracy.choice import recipes_in_words
from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import Lines
from llm_pipeline.base.untrusted_text import markdown, one_line
from llm_pipeline.config.loading import load_release
from llm_pipeline.flow import Flow
from llm_pipeline.license_question import license_change_to_review
from llm_pipeline_airflow.claim import claim_of
from llm_pipeline_airflow.evidence import markdown_table
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.operators import RELEASE_ID_TEMPLATE

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)


class DecisionOperator(ApprovalOperator):
    """Asks a human and waits without a worker; no answer in time is a rejection, which skips what follows.

    While it waits, a newer release that supersedes this one need not: a late answer then starts nothing.

    Args:
        config_path: The release config.
        timeout_hours: Time to answer.
        release_id: The release; by default what the task `resolve` returned.
    """

    template_fields: Collection[str] = ("subject", "body", "release_id")
    parks = True
    """Whether a newer release may take this one's place meanwhile: not where traffic was moved."""

    def __init__(
        self, *, config_path: str, timeout_hours: float, release_id: str = RELEASE_ID_TEMPLATE, **kwargs: Any
    ) -> None:
        super().__init__(defaults=self.REJECT, response_timeout=timedelta(hours=timeout_hours), **kwargs)
        self.config_path = config_path
        self.release_id = release_id

    def flow(self) -> Flow:
        """The release that is decided about."""
        return Flow.open(load_release(Path(self.config_path)).deployment, self.release_id)

    def ask(self, context: Context) -> Any:
        """Write the request, then wait."""
        if self.parks:
            try:
                claim_of(self.config_path, context).park()
            except Terminal as error:
                raise AirflowFailException(str(error)) from error
        else:
            self.check_claim(context)
        log.info("%s", Lines(f"asking for a decision:\n{self.body}"))
        return super().execute(context)

    def check_claim(self, context: Context) -> None:
        """Make sure that this release may still go on.

        Raises:
            AirflowFailException: It may not.
        """
        try:
            claim_of(self.config_path, context).check()
        except Terminal as error:
            raise AirflowFailException(str(error)) from error

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Act on the answer, if this release may still go on."""
        self.check_claim(context)
        return super().execute_complete(context, event)


class LicenseReviewOperator(DecisionOperator):
    """Asks a human before anything is fetched, if the model's licence or gating is not what it was; else goes on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(subject="Release the model under its changed licence?", **kwargs)

    def execute(self, context: Context) -> Any:
        """Ask if there is a change."""
        flow = self.flow()
        change = license_change_to_review(flow)
        if not change:
            log.info("licence and gating are what they were in the release before: nobody is asked")
            return None
        self.subject = one_line(f"Release {flow.record.model.id} under its changed licence?")
        self.body = _license_body(flow, change)
        return self.ask(context)


class ReleaseApprovalOperator(DecisionOperator):
    """Asks a human, showing every gate of the targets that passed.

    Args:
        last_gates: Task ids of the gates that a target must have passed in this run.
    """

    def __init__(self, *, last_gates: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(subject="Promote the release to production?", **kwargs)
        self.last_gates = last_gates

    def execute(self, context: Context) -> Any:
        """Ask, with the gates' table."""
        flow = self.flow()
        offered = passed_targets(context, self.last_gates)
        self.subject = one_line(f"Promote {flow.record.model.id} to production on {', '.join(offered)}?")
        self.body = _approval_body(flow, offered)
        return self.ask(context)


def passed_targets(context: Context, gates: tuple[str, ...]) -> list[str]:
    """Targets whose gates ended well in this run; Airflow drops the XCom of a gate that is run again."""
    first, *others = (_subjects(context, gate) for gate in gates)
    return [target for target in first if all(target in passed for passed in others)]


def _subjects(context: Context, gate: str) -> list[str]:
    returned = context["ti"].xcom_pull(task_ids=gate)  # all map indexes; one alone comes without its list
    results = returned if isinstance(returned, list) else [returned]
    return [result["subject"] for result in results if result]


def _license_body(flow: Flow, change: str) -> str:
    lines = [
        f"Release {markdown(flow.record.release_id)}, commit `{flow.record.model.commit}`.",
        "",
        f"**Licence or gating, since the release before:** {markdown(change)}",
        "",
        "Nothing was fetched yet. **Approve** goes on with the download; **Reject** ends the release here.",
    ]
    return "\n".join(lines)


def _approval_body(flow: Flow, offered: list[str]) -> str:
    chosen = {target: flow.chosen_recipe(target) for target in offered}
    subjects = {*chosen.values(), *offered}
    gates = [result for (_, subject), result in sorted(flow.results().items()) if subject in subjects]
    gates.sort(key=lambda result: result.timings.started_at)
    left_out = [target for target in flow.targets if target not in offered]
    recipes = recipes_in_words(chosen)
    lines = [
        f"Release {markdown(flow.record.release_id)}, recipe {markdown(recipes)}, commit `{flow.record.model.commit}`.",
        "",
        markdown_table(gates),
    ]
    if left_out:
        lines += ["", f"Not offered, for a gate did not pass: {markdown(', '.join(left_out))}."]
    return "\n".join([*lines, "", "**Approve** starts the canary; **Reject** ends the release here."])

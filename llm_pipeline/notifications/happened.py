"""Events out of what a release's records and acts say: a verdict, an error, a question, a canary's own events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import PipelineError, StageOutOfTime, runbook
from llm_pipeline.base.quantities import duration
from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.events import CanaryEvent, EventKind
from llm_pipeline.config.notifications import NotificationKind, Severity
from llm_pipeline.notifications.event import Event, Origin
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import answer_in_words
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Effect

_LONGEST_TEXT = 1000
_RUNBOOK = "Runbook"

_ENDED: Mapping[NotificationKind, str] = {
    "retry": "failed",
    "deadline": "ran out of time",
    "failure": "failed",
}

_CANARY: Mapping[EventKind, tuple[NotificationKind, Severity]] = {
    EventKind.STARTED: ("start", "info"),
    EventKind.SHIFTED: ("step", "info"),
    EventKind.PASSED: ("step", "info"),
    EventKind.PAUSED: ("pause", "warning"),
    EventKind.PAUSED_BY_PERSON: ("pause", "warning"),
    EventKind.RESUMED: ("pause", "info"),
    EventKind.APPROVAL_ASKED: ("pause", "warning"),
    EventKind.APPROVED: ("pause", "info"),
    EventKind.DENIED: ("pause", "warning"),
    EventKind.VERDICT: ("verdict", "warning"),
    EventKind.PROMOTED: ("promotion", "info"),
    EventKind.ROLLING_BACK: ("rollback", "critical"),
    EventKind.ROLLED_BACK: ("rollback", "critical"),
    EventKind.REVIVED: ("pause", "warning"),
    EventKind.STOOD_IN: ("step", "warning"),
}


def asked(origin: Origin, question: str, *, key: str, subject: str = "", until: datetime | None, action: str) -> Event:
    """A person is asked, and the release waits.

    Args:
        origin: The release.
        question: On one line.
        key: Tells this question from any other, also from the same one when it is put again.
        subject: What it is about besides the release.
        until: When the time to answer ends; None where it does not.
        action: How it is answered.
    """
    deadline = f" by {_time(until)}, or it is a rejection" if until else ""
    return Event(
        id=f"asked/{key}", at=datetime.now(UTC), kind="approval", severity="warning",
        deployment=origin.deployment, release_id=origin.release_id, subject=subject, link=origin.link,
        title=_text(f"Waiting for a person: {question}"), why="The release goes on when it is answered.",
        next_action=_text(f"Answer{deadline}: {action}"),
    )  # fmt: skip


def answered(origin: Origin, question: str, *, key: str, subject: str = "", answer: str, by: str) -> Event:
    """A question has its answer."""
    return Event(
        id=f"answered/{key}", at=datetime.now(UTC), kind="approval", severity="info",
        deployment=origin.deployment, release_id=origin.release_id, subject=subject, link=origin.link,
        title=_text(f"{answer.capitalize()}: {question}"), why=_text(answer_in_words(answer, by)),
        details={"By": by} if by else {},
    )  # fmt: skip


def judged(origin: Origin, result: StageResult) -> Event | None:
    """The verdict of a gate; None for a stage that is none, and for a canary's step, whose own events say it."""
    judgement, step = result.judgement, step_named(result.stage)
    if judgement is None or (step is not None and step.effect is Effect.PRODUCTION):
        return None
    good, name = judgement.verdict is Verdict.GO, _name(result.stage, result.subject)
    return Event(
        id=f"verdict/{result.release_id}/{result.stage}/{result.subject}/{result.timings.started_at.isoformat()}",
        at=datetime.now(UTC), kind="verdict", severity="info" if good else "warning",
        deployment=origin.deployment, release_id=result.release_id, subject=result.subject, link=origin.link,
        title=_text(f"{name}{result.release_id}: {judgement.verdict.value}"), why=_text(judgement.summary),
        next_action="" if good else "Read the evidence in the release's report.",
        details=({"Reused": "yes"} if result.reused else {}) | ({} if good else {_RUNBOOK: runbook(judgement.verdict)}),
    )  # fmt: skip


def ended(origin: Origin, result: StageResult) -> Event:
    """A stage ended with a result: what keeps a record of releases reads the rest in the store."""
    how = "reused" if result.reused else result.judgement.verdict.value if result.judgement else "done"
    return Event(
        id=f"stage/{result.release_id}/{result.stage}/{result.subject}/{result.timings.started_at.isoformat()}",
        at=datetime.now(UTC), kind="stage", severity="info",
        deployment=origin.deployment, release_id=result.release_id, subject=result.subject, link=origin.link,
        title=_text(f"{_name(result.stage, result.subject)}{result.release_id}: {how}"),
        details={"Took": duration(result.timings.total_seconds)},
        stage=result.stage, began=result.timings.started_at,
    )  # fmt: skip


def failed(
    origin: Origin,
    stage: str,
    subject: str,
    error: BaseException,
    *,
    key: str,
    tried_again: bool = False,
    began: datetime | None = None,
) -> Event:
    """An error that a step ended with.

    Args:
        origin: The release.
        stage: The step; empty for the release as a whole.
        subject: What it works on.
        error: What it ended with. Of an exception of another library only the type is told: its text may hold a secret.
        key: Tells this attempt from any other.
        tried_again: Whether the step is tried again by itself.
        began: When this attempt began, as far as it is known.
    """
    kind = _kind_of_error(error, tried_again=tried_again)
    ended = _ENDED[kind] + (", and is tried again" if tried_again else "")
    why, hint, details = f"{type(error).__name__}: see the log of {stage}", "", {}
    if isinstance(error, PipelineError):
        why, hint = ": ".join(filter(None, (error.where, error.message))), error.hint
        details = {_RUNBOOK: runbook(error.kind)}
    return Event(
        id=f"{kind}/{key}", at=datetime.now(UTC), kind=kind, severity=_severity(stage, kind, tried_again=tried_again),
        deployment=origin.deployment, release_id=origin.release_id, subject=subject, link=origin.link,
        title=_text(f"{_name(stage, subject)}{origin.release_id or origin.deployment}: {ended}"),
        why=_text(why),
        next_action=_text(f"{hint[:1].upper()}{hint[1:]}." if hint and kind != "retry" else ""),
        stage=stage if step_named(stage) else "", began=began, details=details,
    )  # fmt: skip


def verified(deployment: str, place: str, problems: Sequence[str]) -> Event:
    """What serves at a place is not what was released; the same is told once a day."""
    now = datetime.now(UTC)
    return Event(
        id=f"verification/{deployment}/{place}/{now:%Y-%m-%d}/{sha256_json(sorted(problems))[:16]}",
        at=now, kind="verification", severity="critical", deployment=deployment, subject=place,
        title=_text(f"Verification of {place} in {deployment}: {len(problems)} wrong"), why=_text("; ".join(problems)),
        next_action=f"`llm-pipeline verify --place {place}` shows all of it; roll back, or release again.",
    )  # fmt: skip


def of_canary(origin: Origin, event: CanaryEvent, place: str) -> Event:
    """An event of a release's canary at a place."""
    kind, severity = _CANARY[event.kind]
    verdict = f" ({event.verdict.value})" if event.verdict else ""
    return Event(
        id=f"canary/{origin.release_id}/{place}/{event.number}",
        at=datetime.fromtimestamp(event.at, UTC),
        kind=kind, severity="info" if event.verdict is Verdict.GO else severity,
        deployment=origin.deployment, release_id=origin.release_id, subject=place, link=origin.link,
        title=_text(f"Canary of {origin.release_id} on {place}: {event.kind.value}"),
        why=_text(event.summary + verdict), next_action=_of_a_person(event, origin.release_id, place),
        details={"Candidate's share": f"{event.percent:g} %", "By": event.by},
    )  # fmt: skip


def _of_a_person(event: CanaryEvent, release_id: str, target: str) -> str:
    """What a person must do after an event of a canary; empty when nothing."""
    answer = f"llm-pipeline approve-step {release_id} {target} {event.percent:g} [--deny]"
    if event.kind is EventKind.APPROVAL_ASKED:
        return f"Approve or reject the next step in Airflow (Required Actions), or by `{answer}`."
    if event.kind is EventKind.PAUSED_BY_PERSON:
        return f"`llm-pipeline resume {target}`, or roll back. It is still rolled back if it does harm."
    if event.kind is EventKind.PAUSED:
        return (
            "The traffic stays as it is until a person decides, or the deadline rolls it back. "
            "Read the canary's page of the report; then run the release again to continue, answer with "
            f"`{answer}`, or roll back."
        )
    return ""


def _kind_of_error(error: BaseException, *, tried_again: bool) -> NotificationKind:
    if isinstance(error, PipelineError) and error.kind == StageOutOfTime.__name__:
        return "deadline"
    return "retry" if tried_again else "failure"


def _severity(stage: str, kind: NotificationKind, *, tried_again: bool) -> Severity:
    if kind == "retry":
        return "info"
    if tried_again:
        return "warning"
    step = step_named(stage)
    in_production = step.effect is Effect.PRODUCTION if step else bool(stage)  # the guard's and the rollback's tasks
    return "critical" if in_production else "warning"


def _name(stage: str, subject: str) -> str:
    """What a title begins with, before the release: `Build h100 of `, or `Release ` for the release as a whole."""
    step = step_named(stage)
    return " ".join((*filter(None, (step.title if step else stage, subject)), "of ")) if stage else "Release "


def _text(text: str) -> str:
    return one_line(without_credentials(text))[:_LONGEST_TEXT]


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

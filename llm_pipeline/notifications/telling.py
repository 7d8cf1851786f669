"""What people are told of a release: a verdict, an error, a question, a canary's events; sent by Apprise, at once.

A canary's events are told once, by whoever sees them first.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from llm_pipeline.base.errors import PipelineError, Terminal, Unsupported, places_of, runbook
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import CanaryEvent, EventKind, read_events
from llm_pipeline.config.deployment import SEVERITIES, Channel, Deployment, Severity
from llm_pipeline.notifications.mlflow_run import keep_in_mlflow
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.decision import answer_in_words
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Effect
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.place_state import read_place

log = get_logger(__name__)

_TYPES: dict[Severity, str] = {"info": "info", "warning": "warning", "critical": "failure"}
_LONGEST_TEXT = 1000


@dataclass(frozen=True)
class Origin:
    """Which release events are of, and where people read more of it."""

    deployment: str
    release_id: str
    link: str = ""


@dataclass(frozen=True)
class Event:
    """One thing that happened to a release, or that a person must do for it.

    Attributes:
        origin: The release: the name of its config before it has an id, empty where no release is concerned.
        severity: `critical` where production is in danger or was changed back, `warning` where a person should look.
        title: What happened, on one line.
        why: The reason, or the facts behind it.
        subject: The recipe, target or place that it is about; empty for the release as a whole.
        next_action: What a person is to do; empty where nothing is asked.
        details: Further facts by their labels.
    """

    origin: Origin
    severity: Severity
    title: str
    why: str = ""
    subject: str = ""
    next_action: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def text(self) -> str:
        """All but the title, as plain text; what others wrote has no line breaks, control characters or passwords."""
        facts = {
            "What": self.why,
            "Release": self.origin.release_id,
            "Target": self.subject,
            **self.details,
            "At": self.at.strftime("%Y-%m-%d %H:%M:%S UTC"),
            "To do": self.next_action,
        }
        lines = [f"{label}: {plain(value)}" for label, value in facts.items() if value]
        return "\n".join([*lines, f"See: {self.origin.link}"] if self.origin.link else lines)  # our own, with a query


def plain(text: str) -> str:
    """Text of others on one line, without credentials."""
    return one_line(without_credentials(text))[:_LONGEST_TEXT]


_CANARY: Mapping[EventKind, Severity] = {
    EventKind.PAUSED: "warning",
    EventKind.PAUSED_BY_PERSON: "warning",
    EventKind.APPROVAL_ASKED: "warning",
    EventKind.DENIED: "warning",
    EventKind.ROLLING_BACK: "critical",
    EventKind.ROLLED_BACK: "critical",
    EventKind.REVIVED: "warning",
}
"""What is more than `info`."""


def asked(origin: Origin, question: str, *, subject: str = "", until: datetime | None, action: str) -> Event:
    """A person is asked, and the release waits.

    Args:
        origin: The release.
        question: On one line.
        subject: What it is about besides the release.
        until: When the time to answer ends; None where it does not.
        action: How it is answered.
    """
    deadline = f" by {until.astimezone(UTC):%Y-%m-%d %H:%M UTC}, or it is a rejection" if until else ""
    return Event(
        origin, "warning", f"Waiting for a person: {question}", "The release goes on when it is answered.", subject,
        next_action=f"Answer{deadline}: {action}",
    )  # fmt: skip


def answered(origin: Origin, question: str, *, subject: str = "", answer: str, by: str) -> Event:
    """A question has its answer."""
    return Event(origin, "info", f"{answer.capitalize()}: {question}", answer_in_words(answer, by), subject)


def judged(origin: Origin, result: StageResult) -> Event | None:
    """The verdict of a gate; None for a stage that is none, and for a canary's step, whose own events say it."""
    judgement, step = result.judgement, step_named(result.stage)
    if judgement is None or (step is not None and step.effect is Effect.PRODUCTION):
        return None
    good = judgement.verdict is Verdict.GO
    return Event(
        origin,
        "info" if good else "warning",
        f"{_name(result.stage, result.subject)}{result.release_id}: {judgement.verdict.value}",
        judgement.summary,
        result.subject,
        next_action="" if good else "Read the evidence in the release's report.",
        details=({"Reused": "yes"} if result.reused else {})
        | ({} if good else {"Runbook": runbook(judgement.verdict)}),
    )


def failed(origin: Origin, stage: str, subject: str, error: BaseException, *, tried_again: bool = False) -> Event:
    """An error that a step ended with.

    Args:
        origin: The release.
        stage: The step; empty for the release as a whole.
        subject: What it works on.
        error: What it ended with. Of an exception of another library only the type is told: its text may hold a secret.
        tried_again: Whether the step is tried again by itself.
    """
    step = step_named(stage)
    in_production = step.effect is Effect.PRODUCTION if step else bool(stage)  # the guard's and the rollback's tasks
    why, hint, details = f"{type(error).__name__}: see the log of {stage}", "", {}
    if isinstance(error, PipelineError):
        why, hint = ": ".join(filter(None, (error.where, error.message))), error.hint
        details = {"Runbook": runbook(error.kind)}
    return Event(
        origin,
        "info" if tried_again else "critical" if in_production else "warning",
        f"{_name(stage, subject)}{origin.release_id or origin.deployment}: failed"
        f"{', and is tried again' if tried_again else ''}",
        why,
        subject,
        next_action=f"{hint[:1].upper()}{hint[1:]}." if hint and not tried_again else "",
        details=details,
    )


def verified(origin: Origin, place: str, problems: str) -> Event:
    """What serves at a place is not what was released."""
    return Event(
        origin,
        "critical",
        f"Verification of {place} in {origin.deployment}: something is wrong",
        problems,
        place,
        next_action=f"`llm-pipeline verify --place {place}` shows all of it; roll back, or release again.",
    )


def of_canary(origin: Origin, event: CanaryEvent, place: str) -> Event:
    """An event of a release's canary at a place."""
    verdict = f" ({event.verdict.value})" if event.verdict else ""
    return Event(
        origin,
        "info" if event.verdict is Verdict.GO else _CANARY.get(event.kind, "info"),
        f"Canary of {origin.release_id} on {place}: {event.kind.value}",
        event.summary + verdict,
        place,
        next_action=_of_a_person(event, origin.release_id, place),
        details={"Candidate's share": f"{event.percent:g} %", "By": event.by},
        at=datetime.fromtimestamp(event.at, UTC),
    )


def _of_a_person(event: CanaryEvent, release_id: str, target: str) -> str:
    """What a person must do after an event of a canary; empty when nothing."""
    answer = f"llm-pipeline approve-step {release_id} {target} {event.percent:g} [--deny]"
    if event.kind is EventKind.APPROVAL_ASKED:
        return f"Approve or reject the next step in Airflow (Required Actions), or by `{answer}`."
    if event.kind is EventKind.PAUSED_BY_PERSON:
        return f"`llm-pipeline resume {target}`, or roll back. It is still rolled back if it does harm."
    if event.kind is EventKind.PAUSED:
        return (
            "The traffic stays as it is until a person decides, or the deadline rolls it back. Read the canary's page "
            f"of the report; then answer an undecided step with `{answer}`, run the release again, or roll back."
        )
    return ""


def _name(stage: str, subject: str) -> str:
    """What a title begins with, before the release: `Build h100 of `, or `Release ` for the release as a whole."""
    step = step_named(stage)
    return " ".join((*filter(None, (step.title if step else stage, subject)), "of ")) if stage else "Release "


class NotSent(Terminal):
    """A channel cannot send. No error, log or repr of it shows any part of a URL."""


class _Told(Frozen):
    """Number of the last event of a canary that people were told."""

    through: int = 0


def tell(deployment: Deployment, events: Iterable[Event]) -> None:
    """Send events on the deployment's channels.

    Never raises, for people who are not told must not stop a release: errors are logged, without their texts. Channels
    whose variable is not set here are left to others.
    """
    told = list(events)
    for name, channel in deployment.notifications.items():
        with contained(f"sending by {name}"):
            _send(channel, services_of(channel), told)


def tell_canary(deployment: Deployment, place: str, release_id: str = "", *, link: str = "") -> None:
    """Tell people the events of a place's canary that nobody has told yet; see `tell`.

    How far each channel was told is a document in the store, written before the events are sent: of several who look,
    one tells. Whoever has no secret of a channel leaves its events to the others.

    Args:
        deployment: Who is to be told, and the store that holds the canary's record.
        place: The place's name.
        release_id: The release on trial; that which is, or was last, by default.
        link: A page about the release.
    """
    for channel_name, channel in deployment.notifications.items():
        with contained(f"telling {channel_name} of the canary at {place}"):
            services, store = services_of(channel), open_store(deployment.store)
            on_trial = release_id or read_place(store, place).on_trial
            if not services or not on_trial:
                continue
            name = f"releases/{on_trial}/told/{place}.{channel_name}.json"
            known, revision = store.read_as(name, _Told)
            new = read_events(store, on_trial, place, after=known.through if known else 0)
            if not new:
                continue
            told = _Told(through=new[-1].number).model_dump()
            with contextlib.suppress(Conflict):  # another process tells them
                store.write_document(name, told, revision)
                origin = Origin(deployment.name, on_trial, link)
                _send(channel, services, [of_canary(origin, event, place) for event in new])


def keep_run(store: ArtifactStore, deployment: Deployment, release_id: str) -> None:
    """Keep a release that has its report as a run of MLflow, where the deployment names an experiment; see `tell`."""
    if deployment.mlflow_experiment:
        with contained("keeping the release in MLflow"):
            keep_in_mlflow(store, deployment.mlflow_experiment, release_id)


def _send(channel: Channel, services: Any, events: Iterable[Event]) -> None:
    """Send what matters enough.

    Raises:
        NotSent: A service did not take an event; the others were sent.
    """
    wanted = SEVERITIES[SEVERITIES.index(channel.at_least) :]
    sent = [  # as plain text: what others wrote is no markup
        services.notify(event.text, plain(event.title), _TYPES[event.severity], body_format="text")
        for event in events
        if services and event.severity in wanted
    ]
    if not all(sent):
        raise NotSent("a service did not take a message", hint="try its URL with the command `apprise`")


def check_channel(channel: Channel) -> str:
    """What `doctor` says of a channel, without a message sent.

    Raises:
        Unsupported: Apprise is not installed here.
        NotSent: A URL is wrong.
    """
    services = services_of(channel)
    return f"{len(services)} services of Apprise" if services else f"nothing is sent from here: no {channel.variable}"


def services_of(channel: Channel) -> Any:
    """Apprise with a channel's URLs; empty where these cannot be had here.

    Raises:
        Unsupported: Apprise is not installed here.
        NotSent: A URL is wrong.
    """
    urls = os.environ.get(channel.variable, "").split()
    if not urls:
        return ()
    try:
        import apprise
    except ImportError as error:
        raise Unsupported("Apprise is not installed in this interpreter", hint="pip install apprise") from error
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it may show the URLs,
    logging.getLogger("urllib3").setLevel(logging.INFO)  # and this one their paths
    services = apprise.Apprise()
    for number, url in enumerate(urls, start=1):
        if not services.add(url):
            raise NotSent(f"Apprise does not understand URL {number}", hint="try it with the command `apprise`")
    return services


@contextmanager
def contained(what: str) -> Iterator[None]:
    """End the block at an exception, and only the block: people who are not told must not stop a release."""
    try:
        yield
    except PipelineError as error:
        log.warning(f"{what} failed, people may not be told", reason=str(error))
    except Exception as error:  # noqa: BLE001 - its text may hold where people are reached
        log.warning(f"{what} failed, people may not be told", reason=type(error).__name__, raised_at=places_of(error))

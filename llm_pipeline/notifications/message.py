"""One canary event in words: for a Slack-compatible webhook, and for an e-mail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.canary.events import CanaryEvent, EventKind
from llm_pipeline.config.notifications import NotificationKind

_KINDS: Mapping[EventKind, NotificationKind] = {
    EventKind.STARTED: "start",
    EventKind.SHIFTED: "step",
    EventKind.PASSED: "step",
    EventKind.EXTENDED: "step",
    EventKind.PAUSED: "pause",
    EventKind.PAUSED_BY_PERSON: "pause",
    EventKind.RESUMED: "pause",
    EventKind.APPROVAL_ASKED: "pause",
    EventKind.APPROVED: "pause",
    EventKind.DENIED: "pause",
    EventKind.VERDICT: "verdict",
    EventKind.PROMOTED: "promotion",
    EventKind.ROLLING_BACK: "rollback",
    EventKind.ROLLED_BACK: "rollback",
    EventKind.ADOPTED: "rollback",
    EventKind.REVIVED: "pause",
    EventKind.STOOD_IN: "step",
}

_SLACK_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LONGEST_SLACK_TEXT = 2900
"""A block's text may have 3,000 characters."""


@dataclass(frozen=True)
class Message:
    """What people read.

    Attributes:
        title: One line.
        facts: Label and value, in order.
        action: What a person must do; empty where nothing is asked.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    action: str = ""

    def text(self) -> str:
        """Plain text, title first."""
        lines = [self.title, "", *(f"{label}: {one_line(value)}" for label, value in self.facts)]
        return "\n".join([*lines, "", self.action] if self.action else lines) + "\n"

    def slack(self) -> dict[str, Any]:
        """The JSON of a Slack-compatible webhook: a fallback text and blocks, both without markup of their own."""
        facts = "\n".join(f"{label}: {one_line(value)}" for label, value in self.facts)
        parts = [f"*{_escaped(self.title)}*", _escaped(facts), *([_escaped(self.action)] if self.action else [])]
        return {"text": _escaped(self.title), "blocks": [_section(part) for part in parts]}


def kind_of(event: CanaryEvent) -> NotificationKind:
    """What a message about the event is about."""
    return _KINDS[event.kind]


def message_of(event: CanaryEvent, *, release_id: str, target: str) -> Message:
    """The message about an event of a release's canary on a target."""
    verdict = f" ({event.verdict.value})" if event.verdict else ""
    facts = (
        ("What", without_credentials(event.summary) + verdict),
        ("Release", release_id),
        ("Target", target),
        ("Candidate's share", f"{event.percent:g} %"),
        ("By", event.by),
        ("At", datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
    )
    title = f"Canary of {release_id} on {target}: {event.kind.value}"
    return Message(title=one_line(title), facts=facts, action=_action(event, release_id, target))


def _action(event: CanaryEvent, release_id: str, target: str) -> str:
    """What a person must do after an event; empty when nothing."""
    answer = f"llm-pipeline approve-step {release_id} {target} {event.percent:g} [--deny]"
    if event.kind is EventKind.APPROVAL_ASKED:
        return f"To do: approve or reject the next step in Airflow (Required Actions), or by `{answer}`."
    if event.kind is EventKind.PAUSED_BY_PERSON:
        return f"To do: `llm-pipeline resume {target}`, or roll back. It is still rolled back if it does harm."
    if event.kind is EventKind.PAUSED:
        return (
            "To do: the traffic stays as it is until a person decides, or the deadline rolls it back. "
            "Read the canary's page of the report; then run the release again to continue, answer with "
            f"`{answer}`, or roll back."
        )
    return ""


def _section(text: str) -> dict[str, Any]:
    # verbatim: names of channels and people, and addresses, that a config's text holds are no links.
    return {"type": "section", "text": {"type": "mrkdwn", "verbatim": True, "text": text[:_LONGEST_SLACK_TEXT]}}


def _escaped(text: str) -> str:
    return text.translate(_SLACK_ENTITIES)

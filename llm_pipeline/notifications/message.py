"""One event in words: for a Slack-compatible webhook, and for an e-mail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.config.notifications import Severity
from llm_pipeline.notifications.event import Event

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
        severity: How much it matters.
        link: A page about it; empty where there is none.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    action: str = ""
    severity: Severity = "info"
    link: str = ""

    def text(self) -> str:
        """Plain text, title first."""
        lines = [self.title, "", *(f"{label}: {one_line(value)}" for label, value in self.facts)]
        for last in filter(None, (self.action, self.link)):
            lines += ["", last]
        return "\n".join(lines) + "\n"

    def slack(self) -> dict[str, Any]:
        """The JSON of a Slack-compatible webhook: a fallback text and blocks, both without markup of others."""
        facts = "\n".join(f"{label}: {one_line(value)}" for label, value in self.facts)
        parts = [f"*{_escaped(self.title)}*", _escaped(facts), *([_escaped(self.action)] if self.action else [])]
        if self.link:
            parts.append(f"<{_escaped(self.link).replace('|', '%7C')}>")
        return {"text": _escaped(self.title), "blocks": [_section(part) for part in parts]}


def message_of(event: Event) -> Message:
    """The message about an event."""
    facts = {
        "What": event.why,
        "Release": event.release_id,
        "Target": event.subject,
        **event.details,
        "At": event.at.strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
    return Message(
        title=one_line(event.title),
        facts=tuple((label, value) for label, value in facts.items() if value),
        action=f"To do: {event.next_action}" if event.next_action else "",
        severity=event.severity,
        link=event.link,
    )


def _section(text: str) -> dict[str, Any]:
    # verbatim: names of channels and people, and addresses, that a config's text holds are no links.
    return {"type": "section", "text": {"type": "mrkdwn", "verbatim": True, "text": text[:_LONGEST_SLACK_TEXT]}}


def _escaped(text: str) -> str:
    return text.translate(_SLACK_ENTITIES)

"""One event of a release, and where events come from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.notifications import NotificationKind, Severity


class Event(Frozen):
    """One thing that happened to a release, or that a person must do for it.

    Attributes:
        number: Its place in the store's stream, from 1; 0 before it is there.
        id: Names the fact: of two events with the same id, only one gets into the stream.
        kind: What it is about.
        severity: `critical` where production is in danger or was changed back, `warning` where a person should look.
        deployment: Name of the deployment: its channels tell of it.
        release_id: The release; the name of its config before it has an id, empty where no release is concerned.
        subject: The recipe, target or place that it is about; empty for the release as a whole.
        title: What happened, on one line.
        why: The reason, or the facts behind it.
        next_action: What a person is to do; empty where nothing is asked.
        link: A page about it; empty where there is none.
        details: Further facts by their labels.
        stage: The stage that it is about; empty where it is about none.
        began: When that stage began, where it has ended.
    """

    number: int = 0
    id: str
    at: datetime
    kind: NotificationKind
    severity: Severity
    deployment: str
    release_id: str = ""
    subject: str = ""
    title: str
    why: str = ""
    next_action: str = ""
    link: str = ""
    details: dict[str, str] = Field(default={})
    stage: str = ""
    began: datetime | None = None


@dataclass(frozen=True)
class Origin:
    """Which release events are of, and where people read more of it."""

    deployment: str
    release_id: str
    link: str = ""

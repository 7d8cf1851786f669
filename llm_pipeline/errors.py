"""Errors that say what happened, where, and what to do next; their family decides whether a retry can help.

Every error raised on purpose is a `PipelineError`. `Terminal` errors stay wrong however often they are
tried (bad configuration, an unsupported combination, a failed gate); `Transient` ones may pass when tried
again (network, throttling, a lost process). Runners, the command line and the Airflow retry policy read
the family, never the message.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

_CREDENTIALS_IN_URL = re.compile(r"(?<=://)[^\s@]*@")


class ExitCode(IntEnum):
    """What the command line returns; gates map to 0 to 3, everything else to 4 or 5."""

    GO = 0
    NO_GO = 1
    INCONCLUSIVE = 2
    ANOMALOUS = 3
    BAD_INPUT = 4
    INFRASTRUCTURE = 5


def without_credentials(text: str) -> str:
    """The text, with `***` for what stands before the host in a URL: people write passwords there."""
    return _CREDENTIALS_IN_URL.sub("***@", text)


class ErrorDocument(BaseModel):
    """An error as it crosses a process boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: str
    family: Literal["terminal", "transient"]
    message: str
    where: str = ""
    hint: str = ""
    exit_code: ExitCode


class PipelineError(Exception):
    """Root of this package's errors. None of their texts shows the credentials of a URL.

    Attributes:
        message: What happened.
        where: The file, line, key, stage or address it happened at; may be empty.
        hint: What the reader can do about it; may be empty.
    """

    family: ClassVar[Literal["terminal", "transient"]] = "terminal"
    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message, self.where, self.hint = map(without_credentials, (message, where, hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" -> {self.hint}" if self.hint else ""
        return f"{place}{self.message}{advice}"

    def to_document(self) -> ErrorDocument:
        """The error as data, for a result file."""
        return ErrorDocument(
            type=type(self).__name__,
            family=self.family,
            message=self.message,
            where=self.where,
            hint=self.hint,
            exit_code=self.exit_code,
        )


class Terminal(PipelineError):
    """Trying again cannot help."""


class Transient(PipelineError):
    """Trying again may help."""

    family = "transient"


class ConfigError(Terminal):
    """A configuration file, parameter or argument is wrong."""

    exit_code = ExitCode.BAD_INPUT


class Unsupported(Terminal):
    """What was asked for cannot be done on this target, version or host."""

    exit_code = ExitCode.BAD_INPUT


class IntegrityError(Terminal):
    """Bytes are not what their digest, manifest or format says."""


class StageCrashed(Transient):
    """A stage's process ended without a result (killed, out of memory, machine lost)."""


class StageCancelled(Transient):
    """The stage was asked to stop, by a user or by a machine that is going down; run again, it goes on."""


class RemoteStageError(Terminal):
    """A terminal error that a stage's process reported; it keeps that error's exit code."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(f"{document.type}: {document.message}", where=document.where, hint=document.hint)
        self.document = document
        self.exit_code = document.exit_code


class RemoteStageTransient(Transient):
    """A transient error that a stage's process reported."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(f"{document.type}: {document.message}", where=document.where, hint=document.hint)
        self.document = document


def from_document(document: ErrorDocument) -> PipelineError:
    """Rebuild an error that another process reported, keeping its family and exit code."""
    return RemoteStageTransient(document) if document.family == "transient" else RemoteStageError(document)

"""What the linter found: one sentence a broken rule, with the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One broken rule.

    Attributes:
        model: The model's directory; empty for the repository itself.
        rule: The rule's name.
        message: What is wrong.
        fix: What to write instead.
        file: Path of the file inside the model's directory; empty for the directory itself.
        line: Of the file, from 1, where known.
        severity: `error` where the server refuses or misreads it, `warning` where it serves worse than it could.
    """

    model: str
    rule: str
    message: str
    fix: str
    file: str = "config.pbtxt"
    line: int | None = None
    severity: Severity = "error"

    @property
    def place(self) -> str:
        """`model/file:line`, as far as they are known."""
        path = "/".join(part for part in (self.model, self.file) if part) or "."
        return path if self.line is None else f"{path}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place} {self.severity} {self.rule}: {self.message} -> {self.fix}"

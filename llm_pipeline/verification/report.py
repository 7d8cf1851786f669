"""One row for each step: what was seen, and how it differs from what is recorded."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Frozen

log = get_logger(__name__)

Outcome = Literal["PASS", "FAIL", "SKIPPED"]


class Row(Frozen):
    """The result of one step.

    Attributes:
        step: Its name, as in docs/verification.md.
        seen: What was seen, in one line.
        differences: From what is recorded or was asked for, one line each; a row with some is a FAIL.
        seconds: Wall time.
    """

    step: str
    outcome: Outcome
    seen: str
    differences: tuple[str, ...] = ()
    seconds: float = 0.0


class Report(Frozen):
    """The content of `verification.json`.

    Attributes:
        facts: Image, GPUs, driver and versions that the rows are of.
        rows: In the order in which the steps ran.
    """

    facts: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def failed(self) -> bool:
        """Whether any step has the outcome FAIL."""
        return any(row.outcome == "FAIL" for row in self.rows)


@dataclass(frozen=True)
class Seen:
    """The observation of a step, which passes if nothing differs."""

    text: str
    differences: Sequence[str] = ()


class Skipped(Exception):
    """The step cannot run here; the message says why."""


def take(step: str, look: Callable[[], Seen]) -> Row:
    """Run one step; an error becomes its result."""
    started = time.monotonic()
    log.info(f"step {step}")
    row = _row(step, look)
    log.info(f"step {step}: {row.outcome}", seen=row.seen)
    return row.model_copy(update={"seconds": round(time.monotonic() - started, 1)})


def _row(step: str, look: Callable[[], Seen]) -> Row:
    try:
        seen = look()
    except Skipped as reason:
        return Row(step=step, outcome="SKIPPED", seen=str(reason))
    except PipelineError as error:
        return Row(step=step, outcome="FAIL", seen=f"{type(error).__name__}: {error}")
    except (OSError, ValueError, LookupError, RuntimeError, subprocess.SubprocessError) as error:
        log.exception("the step itself failed")
        return Row(step=step, outcome="FAIL", seen=f"{type(error).__name__}: {error}")
    outcome: Outcome = "FAIL" if seen.differences else "PASS"
    return Row(step=step, outcome=outcome, seen=seen.text, differences=tuple(seen.differences))


def table(report: Report) -> str:
    """The report for people: the facts, a line for each step, and below it what differs."""
    lines = [f"{name}: {value}" for name, value in report.facts.items()]
    width = max((len(row.step) for row in report.rows), default=0)
    for row in report.rows:
        lines.append(f"{row.outcome:<7}  {row.step:<{width}}  {row.seen}")
        lines += [f"{'':7}  {'':{width}}  - {difference}" for difference in row.differences]
    counts = {name: sum(row.outcome == name for row in report.rows) for name in ("PASS", "FAIL", "SKIPPED")}
    return "\n".join([*lines, ", ".join(f"{count} {name}" for name, count in counts.items())]) + "\n"

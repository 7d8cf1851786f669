"""The four verdicts of a gate, and the evidence that a verdict must carry."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from pydantic import model_validator

from llm_pipeline.base.errors import ExitCode, runbook
from llm_pipeline.base.records import Frozen


class Verdict(StrEnum):
    """The verdict of a gate, or of one of its facts."""

    GO = "GO"
    NO_GO = "NO_GO"
    INCONCLUSIVE = "INCONCLUSIVE"
    ANOMALOUS = "ANOMALOUS"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command line for this verdict."""
        return ExitCode[self.value]

    @property
    def see(self) -> str:
        """What follows a sentence with this verdict: the address of its runbook in brackets; nothing for GO."""
        return "" if self is Verdict.GO else f" ({runbook(self.value)})"


_SEVERITY = (Verdict.ANOMALOUS, Verdict.NO_GO, Verdict.INCONCLUSIVE, Verdict.GO)


class Evidence(Frozen):
    """One measured fact and what it says.

    Attributes:
        name: What was measured, in words a reader of the report knows.
        verdict: What this fact alone says.
        measured: The point estimate, in `unit`; None when there is no data.
        lower: Lower confidence bound of `measured`, if one was computed.
        upper: Upper confidence bound of `measured`, if one was computed.
        confidence: Of each of these bounds, which are one-sided.
        limit: What it was compared with, in `unit`.
        unit: Unit of the four numbers, e.g. "ms", "fraction", "requests".
        samples: How many observations stand behind it.
        detail: One sentence for the reader.
    """

    name: str
    verdict: Verdict
    measured: float | None = None
    lower: float | None = None
    upper: float | None = None
    confidence: float | None = None
    limit: float | None = None
    unit: str = ""
    samples: int = 0
    detail: str = ""

    @model_validator(mode="after")
    def _no_data_never_passes(self) -> Evidence:
        numbers = (self.measured, self.lower, self.upper, self.limit)
        if any(number is not None and math.isnan(number) for number in numbers):
            raise ValueError(f"evidence {self.name!r} holds NaN: give None and a verdict other than GO")
        if self.verdict is Verdict.GO and (self.measured is None or self.samples < 1):
            raise ValueError(f"evidence {self.name!r} says GO without data")
        return self


class Judgement(Frozen):
    """A gate's verdict with its evidence.

    Attributes:
        verdict: The worst verdict of the evidence; never GO without evidence.
        summary: One sentence: what was decided and why.
        evidence: The facts, most important first.
    """

    verdict: Verdict
    summary: str
    evidence: tuple[Evidence, ...] = ()

    @model_validator(mode="after")
    def _never_vacuous(self) -> Judgement:
        if self.verdict is Verdict.GO and worst(fact.verdict for fact in self.evidence) is not Verdict.GO:
            raise ValueError("a GO needs evidence, all of it GO")
        return self


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several taken together: no verdict at all is INCONCLUSIVE, never GO."""
    seen = set(verdicts)
    return next((verdict for verdict in _SEVERITY if verdict in seen), Verdict.INCONCLUSIVE)


def judge(summary: str, evidence: Iterable[Evidence]) -> Judgement:
    """Gather evidence into a judgement whose verdict is the worst of it."""
    facts = tuple(evidence)
    return Judgement(verdict=worst(fact.verdict for fact in facts), summary=summary, evidence=facts)

"""Everything a release report shows, as data: collected once, then rendered as HTML."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from llm_pipeline.accuracy.evaluation import Comparison, DataRead, EvaluationSummary, PairedAccuracy
from llm_pipeline.base.records import ArtifactRef, Frozen
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.canary.timeline import CanarySummary
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.inspection.release_summaries import Figure
from llm_pipeline.loadtest.outcome import LoadTestOutcome, TokenCost
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.reporting.spending import Spending

State = Literal[
    "in production", "replaced", "rolled back", "stopped", "not approved", "ended by a person", "failed", "on its way"
]


class Headline(Frozen):
    """The report's first lines.

    Attributes:
        state: What became of the release.
        verdict: The worst verdict among the gates that decide; None before the first of them, or after an error.
        sentence: Why, in one sentence.
    """

    state: State
    verdict: Verdict | None
    sentence: str


class Fact(Frozen):
    """A labelled value; `code` values are identifiers, shown in a fixed-width font."""

    label: str
    value: str
    code: bool = False


class Gate(Frozen):
    """One gate's judgement.

    Attributes:
        name: Stage and subject, e.g. `load test, cpu`.
        decides: False for the gate of a recipe that was tried but not released.
    """

    name: str
    decides: bool
    judgement: Judgement

    @property
    def decisive(self) -> Evidence | None:
        """The first evidence that says what the verdict says; None without evidence."""
        evidence = self.judgement.evidence
        return next((fact for fact in evidence if fact.verdict is self.judgement.verdict), next(iter(evidence), None))


class Trial(Frozen):
    """A recipe of the release: what was found when it was tried, or why it was not.

    Attributes:
        weights: Its weight format.
        verdict: Its accuracy gate's; None when there is none.
        outcome: Why there is no verdict, in words: skipped, an error, not run; else empty.
        chosen_on: Targets that are built with it.
        bytes: Size of its weights.
        size_ratio: That, by the size of the weights as published.
        effective_bits: Mean bits of a weight, where the quantizer counted them.
        evaluation: What its gate asked, and how it compares with the baseline; None before the gate.
    """

    name: str
    weights: str
    verdict: Verdict | None = None
    outcome: str = ""
    chosen_on: tuple[str, ...] = ()
    bytes: int | None = None
    size_ratio: float | None = None
    effective_bits: float | None = None
    evaluation: EvaluationSummary | None = None

    @property
    def pooled(self) -> PairedAccuracy | None:
        """Its items beside the baseline's, all tasks together."""
        comparison = self.evaluation.comparison if self.evaluation else None
        return comparison.pooled if comparison else None


class CandidateRow(Frozen):
    """A candidate, measured at the rate that its load test confirmed.

    Attributes:
        name: Recipe and variant.
        chosen: Whether it is released on its target.
        verdict: Of its trial; None after an error.
        outcome: Why it did not pass; empty where it did.
        tokens_per_second: Output tokens of all requests together.
        gpu_memory_bytes: Most in use on its GPUs while it decided.
        acceptance_length: Tokens a step with speculation; None without.
    """

    target: str
    name: str
    chosen: bool
    verdict: Verdict | None
    outcome: str = ""
    cost: TokenCost | None = None
    tokens_per_second: float | None = None
    gpu_memory_bytes: int | None = None
    acceptance_length: float | None = None


class AccuracyStudy(Frozen):
    """A candidate against the baseline.

    Attributes:
        name: Recipe, or `served on <target>`.
        judgement: Its gate's.
        margin: Accepted loss over all items, a fraction.
        task_margin: Accepted loss of one task, a fraction.
    """

    name: str
    judgement: Judgement
    margin: float
    task_margin: float
    comparison: Comparison


class LatencyCurve(Frozen):
    """The share of requests that were answered within a time, both rising; without all answers it ends below one."""

    name: str
    milliseconds: tuple[float, ...]
    shares: tuple[float, ...]


class TrafficSeries(Frozen):
    """The requests of the windows that decided, one window after another, by intervals of their scheduled arrival.

    Attributes:
        edges: Of the intervals, in seconds; one more than there are intervals.
        starts: Where each window starts.
        arrived: Requests a second, as are `good` and `failed`.
        output_tokens: Of answered requests, a second.
        longest_stall_milliseconds: Of the requests that arrived in each interval.
    """

    edges: tuple[float, ...]
    starts: tuple[float, ...]
    arrived: tuple[float, ...]
    good: tuple[float, ...]
    failed: tuple[float, ...]
    output_tokens: tuple[float, ...]
    longest_stall_milliseconds: tuple[float, ...]


class LoadStudy(Frozen):
    """The load test of one target.

    Attributes:
        policy: Its limits.
        outcome: Its windows, rates and judgement.
        curves: Latencies of the windows that decided, by name; empty when their records were not kept.
        series: Those windows over time; None likewise.
    """

    target: str
    policy: LoadTestPolicy
    outcome: LoadTestOutcome
    curves: tuple[LatencyCurve, ...] = ()
    series: TrafficSeries | None = None

    def limit(self, curve: str) -> float | None:
        """What the service level allows the latency of that name, in milliseconds; None for no limit."""
        level = self.policy.service_level
        return level.first_token_milliseconds if curve == "first token" else level.end_to_end_milliseconds


class ReportData(Frozen):
    """A release as its report shows it; every part may be empty when the release stopped early.

    Attributes:
        title: The release config's name.
        recipe: In words: `recipe int4_awq`, or what became of the choice.
        margin: Accepted loss over all items, a fraction.
        failures: Stages that ended with an error, have not succeeded since, and without which it cannot go on.
        asides: Likewise, but it can (a recipe that was not chosen, the clearing up).
        confidence: Of each bound of such a loss.
        trials: Every recipe, the cheapest first.
        candidates: What a release by cost tried.
        canaries: By target.
        evaluation_data: The data of the hub that the tasks read.
    """

    release_id: str
    title: str
    model_id: str
    recipe: str
    description: str
    collected_at: datetime
    headline: Headline
    facts: tuple[Fact, ...]
    highlights: tuple[Figure, ...] = ()
    failures: tuple[StageFailure, ...] = ()
    asides: tuple[StageFailure, ...] = ()
    gates: tuple[Gate, ...] = ()
    margin: float = 0.0
    confidence: float = 0.0
    trials: tuple[Trial, ...] = ()
    candidates: tuple[CandidateRow, ...] = ()
    accuracy: tuple[AccuracyStudy, ...] = ()
    loads: tuple[LoadStudy, ...] = ()
    canaries: dict[str, CanarySummary] = Field(default={})
    stages: tuple[StageResult, ...] = ()
    spending: Spending = Spending()
    datasets: dict[str, ArtifactRef] = Field(default={})
    evaluation_data: tuple[DataRead, ...] = ()
    gaps: tuple[str, ...] = ()

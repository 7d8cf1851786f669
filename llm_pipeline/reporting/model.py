"""Everything a release report shows, as data: collected once, then rendered as HTML or Markdown."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from llm_pipeline.accuracy.paired import Comparison
from llm_pipeline.stages.contract import ArtifactRef, Frozen
from llm_pipeline.verdict import Judgement, Verdict

State = Literal["in production", "replaced", "rolled back", "stopped", "on its way"]


class Headline(Frozen):
    """The one thing to read.

    Attributes:
        state: What became of the release.
        verdict: The worst verdict among the gates that decide; None before the first of them.
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


class Highlight(Frozen):
    """One of the few figures on top of the report."""

    label: str
    value: str
    note: str


class Gate(Frozen):
    """One gate's judgement.

    Attributes:
        name: Stage and subject, e.g. `load test, cpu`.
        decides: False for the gate of a recipe that was tried but not released.
    """

    name: str
    decides: bool
    judgement: Judgement


class EngineSpeed(Frozen):
    """How fast a target's engine was under load."""

    target: str
    tokens_per_second: float


class Variant(Frozen):
    """One recipe that was tried.

    Attributes:
        bytes: Size of its checkpoint.
        verdict: Its accuracy gate's; None for the baseline, or before the gate ran.
        engines: Speeds under load, where an engine was built and measured.
    """

    name: str
    bytes: int
    verdict: Verdict | None = None
    chosen: bool = False
    is_baseline: bool = False
    engines: tuple[EngineSpeed, ...] = ()


class AccuracyStudy(Frozen):
    """A candidate against the baseline.

    Attributes:
        name: Recipe, or `served on <target>`.
        margin: Accepted loss over all items, a fraction.
        task_margin: Accepted loss of one task, a fraction.
    """

    name: str
    verdict: Verdict | None
    margin: float
    task_margin: float
    comparison: Comparison


class RequestPoint(Frozen):
    """One request of the load test; latencies are timed from the scheduled arrival, None when there was none."""

    scheduled_seconds: float
    first_token_milliseconds: float | None
    end_to_end_milliseconds: float | None
    failed: bool


class LoadStudy(Frozen):
    """The load test of one target.

    Attributes:
        rate_per_second: Mean rate that the schedule asked for.
        first_token_limit: Service level, milliseconds.
        end_to_end_limit: Service level, milliseconds.
        attainment: Share of requests that must be within both.
    """

    target: str
    rate_per_second: float
    first_token_limit: float
    end_to_end_limit: float
    attainment: float
    requests: tuple[RequestPoint, ...]


class ArmSample(Frozen):
    """One arm's traffic in one interval of the canary."""

    requests: int
    errors: int
    first_token_p50: float | None = None
    first_token_p95: float | None = None


class CanarySample(Frozen):
    """Both arms over one interval; `seconds` counts from the start of the canary."""

    seconds: float
    percent: float
    stable: ArmSample
    canary: ArmSample


class CanaryMark(Frozen):
    """A moment worth a line in the plot: a step began, or the canary was rolled back."""

    seconds: float
    label: str


class CanaryStudy(Frozen):
    """The canary of one target."""

    target: str
    samples: tuple[CanarySample, ...]
    marks: tuple[CanaryMark, ...]


class StageRun(Frozen):
    """One stage's bar in the timeline and its line in the provenance."""

    stage: str
    subject: str
    started_at: datetime
    total_seconds: float
    tool_seconds: float
    reused: bool
    key: str
    verdict: Verdict | None
    artifacts: dict[str, ArtifactRef]
    tools: dict[str, str]

    @property
    def label(self) -> str:
        """Stage and subject, as people write them."""
        return f"{self.stage.replace('_', ' ')}, {self.subject}" if self.subject else self.stage.replace("_", " ")


class ReportData(Frozen):
    """A release as its report shows it; every part may be empty when the release stopped early."""

    release_id: str
    title: str
    description: str
    collected_at: datetime
    headline: Headline
    facts: tuple[Fact, ...]
    highlights: tuple[Highlight, ...] = ()
    gates: tuple[Gate, ...] = ()
    variants: tuple[Variant, ...] = ()
    accuracy: tuple[AccuracyStudy, ...] = ()
    loads: tuple[LoadStudy, ...] = ()
    canaries: tuple[CanaryStudy, ...] = ()
    stages: tuple[StageRun, ...] = ()
    datasets: dict[str, ArtifactRef] = Field(default={})
    gaps: tuple[str, ...] = ()

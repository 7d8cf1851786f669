"""Counters of a deployment's releases, which go on from process to process: the store keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.notifications.event import Event
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.measured_cost import busy_gpus, measured_cost
from llm_pipeline.release.record import ReleaseRecord

Labels = tuple[tuple[str, str], ...]

COUNTERS: Mapping[str, tuple[str, str]] = {
    "llm_pipeline.events": ("{event}", "Events of releases, by kind and severity."),
    "llm_pipeline.stage.ends": (
        "{stage}",
        "Stages that ended, by outcome: done, reused, a verdict, or a kind of error.",
    ),
    "llm_pipeline.stage.time": ("s", "Time of the stages that were computed."),
    "llm_pipeline.gpu.time": ("h", "GPU-hours of the stages that were computed."),
    "llm_pipeline.cost": ("{unit}", "What those GPU-hours cost, in the deployment's currency."),
}
"""Unit and words of each counter. `docker/monitoring/releases.json` asks for them."""


class Series(Frozen):
    """One counter with its labels."""

    name: str
    labels: Labels
    value: float


class Totals(Frozen):
    """What was counted so far.

    Attributes:
        since: When counting began.
        through: Number of the last event that is in it.
        series: The counters.
    """

    since: datetime
    through: int = 0
    series: tuple[Series, ...] = Field(default=())


def counted(totals: Totals, event: Event, record: ReleaseRecord | None, result: StageResult | None) -> Totals:
    """The totals with an event; the same object where it is in them already."""
    if event.number <= totals.through:
        return totals
    values = {(one.name, one.labels): one.value for one in totals.series}
    for name, labels, value in _added(event, record, result):
        key = name, tuple(sorted(labels.items()))
        values[key] = values.get(key, 0.0) + value
    series = tuple(Series(name=name, labels=labels, value=value) for (name, labels), value in sorted(values.items()))
    return Totals(since=totals.since, through=event.number, series=series)


def metrics_of(totals: Totals, resource: Resource) -> MetricsData:
    """The totals as OpenTelemetry's exporters take them."""
    begin, now = (round(moment.timestamp() * 1e6) * 1000 for moment in (totals.since, datetime.now(UTC)))
    metrics = []
    for name, (unit, words) in COUNTERS.items():
        points = [NumberDataPoint(dict(one.labels), begin, now, one.value) for one in totals.series if one.name == name]
        if points:
            data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            metrics.append(Metric(name, words, unit, data))
    scope = ScopeMetrics(InstrumentationScope("llm_pipeline"), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _added(
    event: Event, record: ReleaseRecord | None, result: StageResult | None
) -> Iterator[tuple[str, dict[str, str], float]]:
    config = record.release.name if record else event.release_id
    if event.kind != "stage":
        yield "llm_pipeline.events", {"kind": event.kind, "severity": event.severity}, 1.0
    if not event.stage:
        return
    stage = {"config": config, "stage": event.stage}
    outcome: str = event.kind if event.kind != "stage" else "done"
    if result is not None:
        outcome = "reused" if result.reused else result.judgement.verdict.value if result.judgement else outcome
    yield "llm_pipeline.stage.ends", {**stage, "outcome": outcome}, 1.0
    if result is None or record is None or result.reused:
        return
    cost = measured_cost(record, result)
    yield "llm_pipeline.stage.time", stage, cost.seconds
    accelerator, _ = busy_gpus(record.release, record.deployment, event.stage, event.subject)
    if accelerator:
        yield "llm_pipeline.gpu.time", {**stage, "accelerator": accelerator}, cost.gpu_hours
    if accelerator and cost.price is not None:
        yield "llm_pipeline.cost", {**stage, "currency": record.deployment.currency}, cost.price

"""Hands spans and counters to OpenTelemetry's exporters, and says whether they took them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from pydantic import Field

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.notifications.channel import NotSent, Refused
from llm_pipeline.notifications.event import Event
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.measured_cost import busy_gpus, measured_cost
from llm_pipeline.release.record import ReleaseRecord, read_release_record
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood

_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class TelemetryRecorder:
    """A span for each stage that ended, one for each release that did, and the totals of a deployment's releases.

    Ids of spans follow from what they are of, and totals are kept in the store with the number of the last event that
    they hold: what is sent twice is the same twice.

    Args:
        traces: Names of the exporters of traces, as `OTEL_TRACES_EXPORTER` has them.
        metrics: The same of metrics.

    Raises:
        ConfigError: One is not installed.
    """

    def __init__(self, traces: Sequence[str], metrics: Sequence[str]) -> None:
        self._traces = [_exporter("traces", name) for name in traces]
        self._metrics = [_exporter("metrics", name) for name in metrics]

    def record(self, event: Event, store: ArtifactStore) -> None:
        """Send what the event adds; see `Recorder`.

        Raises:
            NotSent: An exporter did not take it.
            Refused: The release's documents are damaged.
        """
        try:
            record, result = _record_of(event, store), _result_of(event, store)
        except ConfigError as error:
            raise Refused(error.message) from error
        resource = _resource(event.deployment)
        spans = spans_of(event, record, result, _first_began(event, record, store), resource)
        for exporter in self._traces if spans else ():
            if exporter.export(spans) is not SpanExportResult.SUCCESS:
                raise NotSent("an exporter of OpenTelemetry did not take a span", hint="see OTEL_EXPORTER_OTLP_*")
        if not self._metrics:
            return
        totals = _count(event, record, result, store)
        for exporter in self._metrics:
            if exporter.export(metrics_of(totals, resource)) is not MetricExportResult.SUCCESS:
                raise NotSent("an exporter of OpenTelemetry did not take metrics", hint="see OTEL_EXPORTER_OTLP_*")


def _exporter(signal: str, name: str) -> Any:
    if name == "otlp":
        names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(filter(None, map(os.environ.get, names)), "http/protobuf")
        name = _OTLP.get(protocol, protocol)
    found = [*entry_points(group=f"opentelemetry_{signal}_exporter", name=name)]
    if not found:
        raise ConfigError(
            f"no exporter {name!r} of OpenTelemetry's {signal} is installed here",
            hint="install the extra `otel`, or correct OTEL_EXPORTER_OTLP_PROTOCOL",
        )
    return found[0].load()()


def _resource(deployment: str) -> Resource:
    """Whoever sends it, it is of the same service: the totals go on where another process left them."""
    own = {"service.instance.id": deployment}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        own["service.name"] = "llm-pipeline"
    return Resource.create(own)


def _record_of(event: Event, store: ArtifactStore) -> ReleaseRecord | None:
    """The event's release; None for one that was never resolved."""
    try:
        return read_release_record(store, event.release_id) if event.stage else None
    except ConfigError:
        return None


def _result_of(event: Event, store: ArtifactStore) -> StageResult | None:
    """What the event's stage came to; None if it failed, or came to another result since."""
    if event.kind != "stage":
        return None
    name = results_name(event.release_id, event.stage, event.subject)
    document = store.read_document(name)
    result = understood(StageResult, document.value, name) if document else None
    return result if result and result.timings.started_at == event.began else None


def _first_began(event: Event, record: ReleaseRecord | None, store: ArtifactStore) -> datetime | None:
    """When the release began, at its end; None before."""
    if event.kind != "stage" or event.stage != "report" or record is None:
        return None
    name = results_name(event.release_id, "resolve", "")
    document = store.read_document(name)
    return understood(StageResult, document.value, name).timings.started_at if document else record.created_at


def _count(event: Event, record: ReleaseRecord | None, result: StageResult | None, store: ArtifactStore) -> Totals:
    """The totals with this event, kept in the store; the outbox lets one sender count at a time."""
    name = f"telemetry/{event.deployment}.json"
    document = store.read_document(name)
    before = understood(Totals, document.value, name) if document else Totals(since=datetime.now(UTC))
    after = counted(before, event, record, result)
    if after is not before:
        store.write_document(name, after.model_dump(mode="json"), document.revision if document else None)
    return after


_FAILED = frozenset({"failure", "deadline", "retry"})
_PREFIX = "llm_pipeline"

Attributes = dict[str, str | int | float | bool]


def spans_of(
    event: Event, record: ReleaseRecord | None, result: StageResult | None, began: datetime | None, resource: Resource
) -> Sequence[ReadableSpan]:
    """The spans that end with an event; none for one that ends no stage, or that the sampler leaves out.

    Args:
        event: The event.
        record: Its release, if that was resolved.
        result: What its stage came to, if it did.
        began: When the release began, if it ends with this event.
        resource: Who sends them.
    """
    failed = event.kind in _FAILED
    if not event.stage or not (failed or event.kind == "stage"):
        return ()
    run = record.created_at.isoformat() if record else event.id
    ids, kept = _Ids(_number([event.release_id, run], 16)), _Kept()
    provider = TracerProvider(resource=resource, id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(kept)
    tracer = provider.get_tracer(_PREFIX)
    root = SpanContext(ids.trace, _number([event.release_id, run, "release"], 8), True, TraceFlags(TraceFlags.SAMPLED))
    common = _of_release(event, record)
    if began is not None:
        ids.span = root.span_id
        whole = tracer.start_span(f"release {event.release_id}", attributes=common, start_time=_nanoseconds(began))
        whole.end(_nanoseconds(event.at))
    ids.span = _number([event.release_id, run, event.stage, event.subject, event.id], 8)
    span = tracer.start_span(
        f"{event.stage} {event.subject}".rstrip(),
        context=trace.set_span_in_context(NonRecordingSpan(root)) if record else None,
        attributes=common | _of_stage(event, record, result),
        start_time=_nanoseconds(event.began or event.at),
    )
    if failed:
        span.set_status(Status(StatusCode.ERROR, event.why))
    span.end(_end(event, result))
    return kept.spans


class _Ids(IdGenerator):
    """Gives the ids that were set: those of a release and its stages, the same for every process."""

    def __init__(self, trace_id: int) -> None:
        self.trace = trace_id
        self.span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Kept(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def _of_release(event: Event, record: ReleaseRecord | None) -> Attributes:
    found: Attributes = {f"{_PREFIX}.release": event.release_id, f"{_PREFIX}.deployment": event.deployment}
    if record is not None:
        found |= {
            f"{_PREFIX}.config": record.release.name,
            f"{_PREFIX}.model": record.model.id,
            f"{_PREFIX}.commit": record.model.commit,
        }
    return found


def _of_stage(event: Event, record: ReleaseRecord | None, result: StageResult | None) -> Attributes:
    found: Attributes = {f"{_PREFIX}.stage": event.stage, f"{_PREFIX}.subject": event.subject}
    if result is None:
        return found
    found |= {f"{_PREFIX}.stage_key": result.key, f"{_PREFIX}.reused": result.reused}
    if result.judgement is not None:
        found |= {f"{_PREFIX}.verdict": result.judgement.verdict.value, f"{_PREFIX}.summary": result.judgement.summary}
    found |= {f"{_PREFIX}.artifact.{name}": str(ref) for name, ref in result.artifacts.items()}
    if record is not None:
        cost = measured_cost(record, result)
        found[f"{_PREFIX}.gpu_hours"] = cost.gpu_hours
        if cost.price is not None and record.deployment.gpu_hour_prices:
            found |= {f"{_PREFIX}.cost": cost.price, f"{_PREFIX}.currency": record.deployment.currency}
    return found


def _end(event: Event, result: StageResult | None) -> int:
    if result is None:
        return _nanoseconds(event.at)
    return _nanoseconds(result.timings.started_at) + round(1e9 * result.timings.total_seconds)


def _number(parts: Sequence[str], size: int) -> int:
    return int(sha256_json(list(parts))[: 2 * size], 16)


def _nanoseconds(moment: datetime) -> int:
    return round(moment.astimezone(UTC).timestamp() * 1e6) * 1000


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

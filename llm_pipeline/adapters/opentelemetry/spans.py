"""The spans of a release: one trace each time that it is run, one span for each stage, and one for the whole.

Their ids are hashes of what they are of, so that a span that is sent again is no other one, and the stages of one
release belong together whoever ran and sent them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.notifications.event import Event
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.measured_cost import measured_cost
from llm_pipeline.release.record import ReleaseRecord

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
    """Gives the ids that it is told."""

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

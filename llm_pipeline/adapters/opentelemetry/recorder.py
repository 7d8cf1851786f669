"""Hands spans and counters to OpenTelemetry's exporters, and says whether they took them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from llm_pipeline.adapters.opentelemetry.spans import spans_of
from llm_pipeline.adapters.opentelemetry.totals import Totals, counted, metrics_of
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.notifications.channel import NotSent, Refused
from llm_pipeline.notifications.event import Event
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.record import ReleaseRecord, read_record
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
        return read_record(store, event.release_id) if event.stage else None
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

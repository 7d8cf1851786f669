"""A receiver of OTLP over HTTP on this machine: it decodes what exporters send, and keeps it."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Series = tuple[str, str, tuple[tuple[str, Any], ...]]

_UNITS = {"s": "_seconds", "ms": "_milliseconds", "h": "_hours"}
_KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@dataclass
class Telemetry:
    """What was received.

    Attributes:
        url: The endpoint, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        spans: In the order of arrival.
        resources: Attributes of who sent them.
        points: The newest value of each series, by metric, unit and attributes; of a histogram, how often it was told.
        counters: Names of the metrics that only grow.
        status: What it answers.
    """

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    points: dict[Series, float] = field(default_factory=dict)
    counters: set[str] = field(default_factory=set)
    status: int = 200

    def take(self, request: Any) -> None:
        for batch in getattr(request, "resource_spans", ()):
            self.resources.append(attributes(batch.resource))
            for scope in batch.scope_spans:
                self.spans += scope.spans
        for batch in getattr(request, "resource_metrics", ()):
            for scope in batch.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    if getattr(data, "is_monotonic", False):
                        self.counters.add(metric.name)
                    for point in data.data_points:
                        labels = tuple(sorted(attributes(point).items()))
                        self.points[metric.name, metric.unit, labels] = value_of(point)

    def prometheus(self) -> list[str]:
        """The series as Prometheus names them: https://prometheus.io/docs/guides/opentelemetry/."""
        return sorted(self._prometheus(*series) for series in list(self.points))

    def _prometheus(self, name: str, unit: str, labels: tuple[tuple[str, Any], ...]) -> str:
        inside = ",".join(f'{label}="{value}"' for label, value in labels)
        total = "_total" if name in self.counters else ""
        return f"{name.replace('.', '_')}{_UNITS.get(unit, '')}{total}" + (f"{{{inside}}}" if inside else "")


def attributes(message: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes}


def value_of(point: Any) -> float:
    return point.as_double or float(point.as_int) if hasattr(point, "as_double") else float(point.count)


@contextlib.contextmanager
def otlp_receiver() -> Iterator[Telemetry]:
    received = Telemetry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if received.status == 200:
                received.take(_KINDS[self.path].FromString(body))
            self.send_response(received.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

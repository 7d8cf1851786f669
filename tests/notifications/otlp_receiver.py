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

_KINDS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@dataclass
class Telemetry:
    """What was received.

    Attributes:
        url: The endpoint, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        spans: In the order of arrival.
        resources: Attributes of who sent them.
        points: The newest value of each series, by metric, unit and attributes.
        status: What it answers.
    """

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    points: dict[tuple[str, str, tuple[tuple[str, Any], ...]], float] = field(default_factory=dict)
    status: int = 200

    def take(self, request: Any) -> None:
        for batch in getattr(request, "resource_spans", ()):
            self.resources.append(attributes(batch.resource))
            for scope in batch.scope_spans:
                self.spans += scope.spans
        for batch in getattr(request, "resource_metrics", ()):
            for scope in batch.scope_metrics:
                for metric in scope.metrics:
                    assert metric.sum.is_monotonic
                    for point in metric.sum.data_points:
                        labels = tuple(sorted(attributes(point).items()))
                        self.points[metric.name, metric.unit, labels] = point.as_double or float(point.as_int)


def attributes(message: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes}


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

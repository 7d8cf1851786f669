"""A receiver of metrics by OTLP over HTTP on this machine: it keeps which series exporters send."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

_UNITS = {"s": "_seconds", "ms": "_milliseconds", "h": "_hours"}


@dataclass
class Telemetry:
    """What was received.

    Attributes:
        url: The endpoint, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
        series: Each as Prometheus names it (https://prometheus.io/docs/guides/opentelemetry/), with its sorted labels.
    """

    url: str = ""
    series: set[tuple[str, ...]] = field(default_factory=set)

    def take(self, body: bytes) -> None:
        for batch in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (metric for scope in batch.scope_metrics for metric in scope.metrics):
                data = getattr(metric, metric.WhichOneof("data"))
                total = "_total" if getattr(data, "is_monotonic", False) else ""
                name = f"{metric.name.replace('.', '_')}{_UNITS.get(metric.unit, '')}{total}"
                self.series |= {(name, *sorted(label.key for label in point.attributes)) for point in data.data_points}


@contextmanager
def otlp_receiver() -> Iterator[Telemetry]:
    received = Telemetry()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield received
        server.shutdown()

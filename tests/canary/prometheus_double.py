"""A double of Prometheus' query API over HTTP.

It keeps samples as they are scraped and answers instant queries of three forms: a selector, `last_over_time` of one
over a range, and `timestamp` of one. Like Prometheus it forgets a series after five minutes, refuses what it cannot
parse with 400, and asks for a bearer token where it has one.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

Labels = tuple[tuple[str, str], ...]
Counters = dict[tuple[str, Labels], float]

_STALE_SECONDS = 300.0
_QUERY = re.compile(
    r"(?:(?P<function>last_over_time|timestamp)\()?(?P<name>[a-z_]+)(?:\{(?P<labels>[^{}]*)\})?(?:\[(?P<range>1h)\])?\)?"
)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class PrometheusDouble:
    """The server; `token`, if set, is asked for; `warnings` come with each answer."""

    def __init__(self) -> None:
        self.token = ""
        self.warnings: list[str] = []
        self._samples: dict[tuple[str, Labels], list[tuple[float, float]]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def scrape(self, at: float, counters: Counters) -> None:
        """Take the counters as samples of that time, to the millisecond."""
        for series, value in counters.items():
            self._samples.setdefault(series, []).append((round(at, 3), value))

    def answer(self, query: str, at: float) -> tuple[int, dict[str, Any]]:
        """An instant query's answer."""
        asked = _QUERY.fullmatch(query)
        labels = dict(_LABEL.findall(asked["labels"] or "")) if asked else {}
        if asked is None or len(labels) != (asked["labels"] or "").count("="):
            return 400, {"status": "error", "errorType": "bad_data", "error": "parse error"}
        found = []
        for (name, series), samples in self._samples.items():
            if name == asked["name"] and labels.items() <= dict(series).items():
                value = _value(samples, at, asked["function"])
                if value is not None:
                    found.append({"metric": {"__name__": name, **dict(series)}, "value": [at, str(value)]})
        answer: dict[str, Any] = {"status": "success", "data": {"resultType": "vector", "result": found}}
        return 200, answer | ({"warnings": self.warnings} if self.warnings else {})


def _value(samples: list[tuple[float, float]], at: float, function: str | None) -> float | None:
    if function == "last_over_time":
        return next((value for when, value in reversed(samples) if at - 3600 < when <= at), None)
    newest = next(((when, value) for when, value in reversed(samples) if when <= at), None)
    if newest is None or newest[0] <= at - _STALE_SECONDS:
        return None
    return newest[0] if function == "timestamp" else newest[1]


def _handler(double: PrometheusDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            status, answer = double.answer(form["query"][0], float(form["time"][0]))
            if double.token and self.headers["authorization"] != f"Bearer {double.token}":
                status, answer = 401, {}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silence."""

    return Handler

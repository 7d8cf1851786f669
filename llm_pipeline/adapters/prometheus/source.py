"""Prometheus as a source of counts: the counters' own values at both ends of a window, no rates.

`increase()` extrapolates, and a series that begins with its first error has no increase at all. So the values at the
window's ends are asked for and subtracted here, series by series: a value that fell is a restart, a series that was
not there before began at zero. Both ends look back an hour, so that a failed scrape is no beginning.
"""

from __future__ import annotations

import json
import math
import os
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Mapping
from http import HTTPStatus

from llm_pipeline.adapters.prometheus.adapter import PrometheusSource
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.metrics import ArmWindow, Histogram, MetricsWindow, SourceDown
from llm_pipeline.canary.router import SlotName
from llm_pipeline.config.router_place import RouterPlace

_LOOK_BACK = "1h"
_TIMEOUT_SECONDS = 5.0
_STALE_SCRAPES = 4.0

Series = frozenset[tuple[str, str]]
Increases = Mapping[Series, int]


class PrometheusMetrics:
    """The `ArmMetrics` port on the query API of a Prometheus."""

    def __init__(self, source: PrometheusSource) -> None:
        """Opens nothing and sends no request.

        Args:
            source: The server and its counters.

        Raises:
            ConfigError: The token's variable is empty.
        """
        self._source = source
        self._slots: dict[str, SlotName] = {source.slots.blue: "blue", source.slots.green: "green"}
        self._headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if source.token_variable is not None:
            token = os.environ.get(source.token_variable)
            if not token:
                raise ConfigError(f"{source.token_variable} must hold a token, and is empty", where=source.url)
            self._headers["Authorization"] = f"Bearer {token}"

    def begin(self, seconds_ago: float = 0.0) -> float:
        """Counting begins with the next scrape; requests up to then belong to the time before."""
        return time.time() - seconds_ago + (0.0 if seconds_ago else self._source.scrape_seconds)

    def window(self, since: float) -> MetricsWindow:
        now = time.time()
        if now < since + self._source.scrape_seconds:
            return {}, since
        self._refuse_stale(now)
        source = self._source
        requests = self._by_slot(self._increases(source.requests, since, now))
        errors = self._by_slot(self._increases(source.errors, since, now))
        first_token = self._histograms(source.first_token, since, now)
        end_to_end = self._histograms(source.end_to_end, since, now)
        arms = {
            slot: ArmWindow(
                requests=sum(requests[slot].values()),
                errors=sum(errors[slot].values()),
                lost=sum(errors[slot].values()),
                first_token=first_token.get(slot),
                end_to_end=end_to_end.get(slot),
            )
            for slot in self._slots.values()
        }
        return arms, now

    def count(self, selector: str) -> int:
        """How many series a selector has now.

        Raises:
            SourceDown: Prometheus does not answer.
        """
        return len(self._query(selector, time.time()))

    def _refuse_stale(self, now: float) -> None:
        newest: dict[str, float] = {}
        for labels, value in self._query(f"timestamp({self._source.requests})", now):
            name = labels.get(self._source.slot_label, "")
            newest[name] = max(value, newest.get(name, 0.0))
        for label, slot in self._slots.items():
            where = f'{self._source.requests} with {self._source.slot_label}="{label}"'
            if label not in newest:
                hint = (
                    "is the server scraped, and is that its label? It may count from its first request on: warm it up"
                )
                raise SourceDown(f"there are no requests of slot {slot}", where=where, hint=hint)
            age = now - newest[label]
            if age > _STALE_SCRAPES * self._source.scrape_seconds:
                raise SourceDown(f"the newest sample of slot {slot} is {age:.0f} s old", where=where)

    def _increases(self, selector: str, start: float, end: float) -> dict[Series, int]:
        """How much each series grew."""
        query = f"last_over_time({selector}[{_LOOK_BACK}])"
        before = {frozenset(labels.items()): value for labels, value in self._query(query, start)}
        grown = {}
        for labels, value in self._query(query, end):
            series = frozenset(labels.items())
            old = before.get(series, 0.0)
            grown[series] = round(value - old if value >= old else value)
        return grown

    def _by_slot(self, increases: Increases) -> dict[SlotName, dict[Series, int]]:
        found: dict[SlotName, dict[Series, int]] = {slot: {} for slot in self._slots.values()}
        for series, count in increases.items():
            label = dict(series).get(self._source.slot_label, "")
            if label in self._slots:
                found[self._slots[label]][series] = count
            elif count:
                problem = f'{count} requests are under {self._source.slot_label}="{label}", which is not a slot'
                raise SourceDown(problem, where=self._source.url, hint="correct slots, or narrow the selectors")
        return found

    def _histograms(self, selector: str | None, start: float, end: float) -> dict[SlotName, Histogram]:
        if selector is None:
            return {}
        milliseconds = 1000.0 if self._source.bucket_unit == "seconds" else 1.0
        found = {}
        for slot, series in self._by_slot(self._increases(selector, start, end)).items():
            counts: defaultdict[float, int] = defaultdict(int)
            for labels, count in series.items():
                counts[float(dict(labels).get("le", "nan"))] += count
            if any(map(math.isnan, counts)):
                raise ConfigError(f"{selector} has series without le", where=self._source.url, hint="name its _bucket")
            edges = sorted(edge for edge in counts if math.isfinite(edge))
            found[slot] = Histogram(
                edges=tuple(edge * milliseconds for edge in edges),
                counts=tuple(counts[edge] for edge in edges),
                total=counts[math.inf],
            )
        return found

    def _query(self, query: str, at: float) -> list[tuple[dict[str, str], float]]:
        """An instant vector, without the metric's name."""
        where = self._source.url
        try:
            answer = call(
                f"{where.rstrip('/')}/api/v1/query",
                seconds=_TIMEOUT_SECONDS,
                method="POST",
                headers=self._headers,
                body=urllib.parse.urlencode({"query": query, "time": f"{at:.3f}"}).encode(),
                through_proxy=True,
            )
        except (OSError, ValueError) as error:
            raise SourceDown(f"Prometheus does not answer: {error}", where=where) from error
        if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            raise ConfigError(f"Prometheus refuses {query}: {answer.body[:500]!r}", where=where)
        if answer.status != HTTPStatus.OK:
            denied = answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
            hint = f"check {self._source.token_variable}" if denied else ""
            raise SourceDown(f"Prometheus answers {answer.status}", where=where, hint=hint)
        try:
            document = json.loads(answer.body)
            if document["status"] != "success":
                raise SourceDown("no answer of Prometheus", where=where)
            if warnings := document.get("warnings"):  # the answer may be a part of the truth
                raise SourceDown(f"an answer with warnings: {'; '.join(warnings)}", where=where)
            found = [
                ({name: text for name, text in one["metric"].items() if name != "__name__"}, float(one["value"][1]))
                for one in document["data"]["result"]
            ]
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise SourceDown(f"no answer of Prometheus: {error!r}", where=where) from error
        if any(not math.isfinite(value) for _, value in found):
            raise SourceDown(f"{query} is not a number", where=where)
        return found


def probe(source: PrometheusSource, _: RouterPlace) -> str:
    """How many series of requests it has now; what `doctor` says of it."""
    return f"{source.url} answers and has {PrometheusMetrics(source).count(source.requests)} series of requests"

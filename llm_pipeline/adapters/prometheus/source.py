"""Prometheus as a source of counts: the counters' own values at both ends of a window, no rates.

`increase()` extrapolates, and a series that begins with its first error has no increase at all. So the values at the
window's ends are asked for and subtracted here, series by series: a value that fell is a restart, a series that was
not there before began at zero. Both ends look back an hour, so that a failed scrape is no beginning.

A window ends at the newest sample of the series that lags most: later ones are perhaps written (remotely, say), and
would be seen at the beginning of the next window, but not at the end of this one.
"""

from __future__ import annotations

import json
import math
import os
import time
import urllib.parse
from collections import defaultdict
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
_SELECTORS = {"requests", "errors", "first_token", "end_to_end"}

Series = frozenset[tuple[str, str]]


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
        now, source = time.time(), self._source
        if now < since + source.scrape_seconds:
            return {}, since
        slots, until = self._newest(now)
        if until <= since:
            return {}, since
        requests, errors = (self._grown(selector, since, until) for selector in (source.requests, source.errors))
        first_token = self._histograms(source.first_token, since, until)
        end_to_end = self._histograms(source.end_to_end, since, until)
        arms = {
            slot: ArmWindow(
                requests=sum(requests[slot].values()),
                errors=sum(errors[slot].values()),
                lost=sum(errors[slot].values()),
                first_token=first_token.get(slot),
                end_to_end=end_to_end.get(slot),
            )
            for slot in slots
        }
        return arms, until

    def count(self, selector: str) -> int:
        """How many series a selector has now.

        Raises:
            SourceDown: Prometheus does not answer.
        """
        return len(self._query(selector, time.time()))

    def _newest(self, now: float) -> tuple[set[SlotName], float]:
        """The slots that have series of requests, and the newest moment that all series which still grow have."""
        where, fresh = self._source.requests, now - _STALE_SCRAPES * self._source.scrape_seconds
        samples: defaultdict[SlotName, list[float]] = defaultdict(list)
        for labels, at in self._query(f"timestamp({where})", now):
            if slot := self._slots.get(labels.get(self._source.slot_label, "")):
                samples[slot].append(at)
        for slot, times in samples.items():
            if max(times) < fresh:
                raise SourceDown(f"the newest sample of slot {slot} is {now - max(times):.0f} s old", where=where)
        if not samples:
            raise SourceDown("there are no requests of either slot", where=where, hint="is that what is scraped?")
        return set(samples), min(at for times in samples.values() for at in times if at >= fresh)

    def _grown(self, selector: str, start: float, end: float) -> dict[SlotName, dict[Series, int]]:
        """How much each series of each slot grew."""
        query = f"last_over_time({selector}[{_LOOK_BACK}])"
        before = {frozenset(labels.items()): value for labels, value in self._query(query, start)}
        grown: dict[SlotName, dict[Series, int]] = {slot: {} for slot in self._slots.values()}
        for labels, value in self._query(query, end):
            series, label = frozenset(labels.items()), labels.get(self._source.slot_label, "")
            old = before.get(series, 0.0)
            count = round(value - old if value >= old else value)
            if label in self._slots:
                grown[self._slots[label]][series] = count
            elif count:
                problem = f'{count} requests are under {self._source.slot_label}="{label}", which is not a slot'
                raise SourceDown(problem, where=self._source.url, hint="correct slots, or narrow the selectors")
        return grown

    def _histograms(self, selector: str | None, start: float, end: float) -> dict[SlotName, Histogram]:
        if selector is None:
            return {}
        milliseconds = 1000.0 if self._source.bucket_unit == "seconds" else 1.0
        found = {}
        for slot, series in self._grown(selector, start, end).items():
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
        if answer.status == HTTPStatus.BAD_REQUEST:
            raise ConfigError(f"Prometheus refuses {query}: {answer.body[:500]!r}", where=where)
        if answer.status != HTTPStatus.OK:
            denied = answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
            hint = f"check {self._source.token_variable}" if denied else ""
            raise SourceDown(f"Prometheus answers {answer.status}: {answer.body[:200]!r}", where=where, hint=hint)
        try:
            document = json.loads(answer.body)
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
    """How many series each selector has now; what `doctor` says of it."""
    found, selectors = PrometheusMetrics(source), source.model_dump(include=_SELECTORS, exclude_none=True)
    counts = ", ".join(f"{found.count(selector)} of {name}" for name, selector in selectors.items())
    return f"{source.url} answers and has series: {counts}"

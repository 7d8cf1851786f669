"""The port to a source of metrics that counts both arms' requests, window by window.

A source without data raises; it never reports zero errors instead. Windows tile: each begins where the one before it
ended, so nothing is counted twice or left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, adapter
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.router import SlotName, TrafficRouter
from llm_pipeline.config.metric_source import MetricSource, MetricSourceModel
from llm_pipeline.config.router_place import RouterPlace


class SourceDown(Transient):
    """The source does not answer, or has no data, or only old data."""


class SourceContradicts(SourceDown):
    """The source's counts contradict the router's: some requests have a wrong arm, or none."""


class Histogram(Frozen):
    """Requests by latency.

    Attributes:
        edges: Upper edges of the buckets in milliseconds, rising, without the infinite one.
        counts: Requests that took no longer than each edge.
        total: All requests.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: int

    def beyond(self, limit: float) -> int:
        """Requests that took longer than so many milliseconds.

        Raises:
            ConfigError: No bucket ends there, so it is not known.
        """
        for edge, count in zip(self.edges, self.counts, strict=True):
            if math.isclose(edge, limit):
                return self.total - count
        edges = ", ".join(f"{edge:g}" for edge in self.edges)
        raise ConfigError(f"no bucket ends at {limit:g} ms, they end at {edges}", hint="compare at an edge")


class ArmWindow(Frozen):
    """One arm's requests in one window.

    Attributes:
        requests: Requests that the router gave to the arm, without those that were refused (4xx).
        errors: Those that its servers failed, hidden by fail-over or not.
        lost: Errors that users saw.
        first_token: Streamed answers by the time to their first token; None where the source has none.
        end_to_end: Answers by the time to their last byte; None where the source has none.
    """

    requests: int = 0
    errors: int = 0
    lost: int = 0
    first_token: Histogram | None = None
    end_to_end: Histogram | None = None


class MetricsCursor(Frozen):
    """How far a source has been read; stored with the canary.

    Attributes:
        began: When counting began, seconds since 1970.
        until: Everything before this is counted; in the future until the source can separate old requests from new.
        counters: What the source itself has to remember.
    """

    began: float
    until: float
    counters: dict[str, int] = Field(default={})


class MetricsWindow(Frozen):
    """Both arms since a cursor, and the new cursor; no arms while there is nothing new."""

    arms: dict[SlotName, ArmWindow]
    cursor: MetricsCursor


class ArmMetrics(Protocol):
    """The interface of every source."""

    def begin(self, seconds_ago: float = 0.0) -> MetricsCursor:
        """Start to count now, or so long ago if the source can look back: call it when a new split is in force.

        Raises:
            SourceDown: It cannot be read.
        """

    def window(self, since: MetricsCursor) -> MetricsWindow:
        """Both arms since the cursor.

        Raises:
            SourceDown: It does not answer, is empty or stale.
            SourceContradicts: Its arms are not the router's.
            ConfigError: It refuses what it is asked.
        """


@dataclass(frozen=True)
class MetricSourceAdapter(Adapter):
    """What an entry point `llm_pipeline.metric_sources` names; see `Adapter`.

    Attributes:
        open: The source of `(source, place, router)`, without asking it anything; raises ConfigError where it does not
            fit the router, or lacks something here.
        probe: As any adapter's, of `(source, place)`.
    """

    config: type[MetricSourceModel]
    open: Callable[[Any, Any, Any], ArmMetrics]


def open_source(source: MetricSource, place: RouterPlace, router: TrafficRouter) -> ArmMetrics:
    """The source, without asking it anything.

    Raises:
        ConfigError: It does not fit the router, or lacks something here.
    """
    if problems := list(source.problems(place)):
        raise ConfigError("\n".join(problems))
    found: MetricSourceAdapter = adapter("metric_sources", source.kind)
    return found.open(source, place, router)

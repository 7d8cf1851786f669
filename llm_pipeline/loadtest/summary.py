"""What a load test measured, for the log, the report and its plots: percentiles with bounds, rates, a time series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.gate import client_lag_seconds, is_good, rate_share
from llm_pipeline.loadtest.records import RequestRecord

SUMMARY_FILE = "summary.json"
QUANTILES = (0.5, 0.9, 0.95, 0.99)
_BINS_A_DECADE = 10
_CONFIDENCE = 0.95


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quantile(_Frozen):
    """A quantile of a latency, in milliseconds, between the order statistics that bound it (two-sided 95 %).

    Attributes:
        lower: None when too few requests lie below for a bound.
        upper: None when too few requests lie beyond for a bound.
    """

    quantile: float
    milliseconds: float
    lower: float | None
    upper: float | None


class Histogram(_Frozen):
    """Counts between logarithmic edges, in milliseconds; one count fewer than edges."""

    edges_milliseconds: tuple[float, ...]
    counts: tuple[int, ...]


class Latency(_Frozen):
    """One latency of the answered requests."""

    mean_milliseconds: float
    maximum_milliseconds: float
    quantiles: tuple[Quantile, ...]
    histogram: Histogram


class SecondOfTraffic(_Frozen):
    """The requests that were scheduled within one second of the window."""

    second: int
    arrived: int
    failed: int
    good: int
    output_tokens: int
    first_token_milliseconds: float | None
    end_to_end_milliseconds: float | None


class LoadTestSummary(_Frozen):
    """A load test in figures.

    Attributes:
        workload_digest: Names the traffic: only tests of the same traffic compare.
        requests: Scheduled requests of the window, warm-up not counted.
        failed: Those without a whole, plausible answer.
        offered_per_second: Rate of the schedule.
        answered_per_second: Answered requests a second, until the last answer.
        good_per_second: Requests a second that met the service level (goodput).
        output_tokens_per_second: Tokens of answered requests a second.
        client_lag_p99_milliseconds: How late the client itself was.
        rate_share: Sent rate divided by offered rate.
        first_token: Latency to the first text; None when nothing was answered.
        end_to_end: Latency to the last byte.
        longest_gap: Longest silence within an answer.
        seconds: Median latencies and counts by second of the schedule.
    """

    workload_digest: str
    requests: int
    failed: int
    offered_per_second: float
    answered_per_second: float
    good_per_second: float
    output_tokens_per_second: float
    client_lag_p99_milliseconds: float
    rate_share: float
    first_token: Latency | None
    end_to_end: Latency | None
    longest_gap: Latency | None
    seconds: tuple[SecondOfTraffic, ...]


def summarize(
    records: Sequence[RequestRecord],
    policy: LoadTestPolicy,
    *,
    offered_per_second: float,
    window_seconds: float,
    workload_digest: str,
) -> LoadTestSummary:
    """Summarize the records of one load test.

    Raises:
        ValueError: There are no records.
    """
    if not records:
        raise ValueError("a load test without requests has no summary")
    answered = [record for record in records if not record.error]
    return LoadTestSummary(
        workload_digest=workload_digest,
        requests=len(records),
        failed=len(records) - len(answered),
        offered_per_second=offered_per_second,
        answered_per_second=len(answered) / window_seconds,
        good_per_second=sum(is_good(record, policy) for record in records) / window_seconds,
        output_tokens_per_second=sum(record.output_tokens for record in answered) / window_seconds,
        client_lag_p99_milliseconds=1e3 * client_lag_seconds(records),
        rate_share=rate_share(records),
        first_token=_latency([r.first_token_seconds for r in answered if r.first_token_seconds is not None]),
        end_to_end=_latency([record.total_seconds for record in answered]),
        longest_gap=_latency([record.longest_gap_seconds for record in answered]),
        seconds=_by_second(records, policy),
    )


def write_summary(directory: Path, summary: LoadTestSummary) -> None:
    """Write the summary of one load test to `directory`."""
    (directory / SUMMARY_FILE).write_text(summary.model_dump_json(indent=1), encoding="utf-8")


def read_summary(directory: Path) -> LoadTestSummary:
    """Read the summary of one load test."""
    return LoadTestSummary.model_validate_json((directory / SUMMARY_FILE).read_text(encoding="utf-8"))


def _binomial_quantile(probability: float, trials: int, share: float) -> int:
    """The smallest count whose cumulative binomial probability reaches `probability`."""
    from scipy import special

    counts = np.arange(trials + 1)
    return int(np.searchsorted(special.bdtr(counts, trials, share), probability))


def quantile_with_bounds(values: Sequence[float], quantile: float) -> Quantile:
    """An order statistic and the two that bound it, from the binomial distribution of the rank; no shape is assumed.

    Source: D. A. and H. N. Nagaraja, Order Statistics (2003), 7.1.
    """
    ordered, count = sorted(values), len(values)
    tail = (1.0 - _CONFIDENCE) / 2.0
    low = _binomial_quantile(tail, count, quantile)
    high = _binomial_quantile(1.0 - tail, count, quantile) + 1
    return Quantile(
        quantile=quantile,
        milliseconds=1e3 * ordered[max(0, math.ceil(quantile * count) - 1)],
        lower=1e3 * ordered[low - 1] if low >= 1 else None,
        upper=1e3 * ordered[high - 1] if high <= count else None,
    )


def _latency(seconds: Sequence[float]) -> Latency | None:
    if not seconds:
        return None
    return Latency(
        mean_milliseconds=1e3 * float(np.mean(seconds)),
        maximum_milliseconds=1e3 * max(seconds),
        quantiles=tuple(quantile_with_bounds(seconds, quantile) for quantile in QUANTILES),
        histogram=_histogram([1e3 * value for value in seconds]),
    )


def _histogram(milliseconds: Sequence[float]) -> Histogram:
    """Ten bins a decade, the same edges for every test, so that two histograms can be laid over one another."""
    values = np.maximum(np.asarray(milliseconds), 1e-3)
    first = math.floor(math.log10(float(values.min())) * _BINS_A_DECADE)
    last = max(first + 1, math.floor(math.log10(float(values.max())) * _BINS_A_DECADE) + 1)
    edges = 10.0 ** (np.arange(first, last + 1) / _BINS_A_DECADE)
    counts = np.bincount(np.clip(np.searchsorted(edges, values, side="right") - 1, 0, last - first - 1))
    padded = np.pad(counts, (0, last - first - len(counts)))
    return Histogram(edges_milliseconds=tuple(edges.tolist()), counts=tuple(int(count) for count in padded))


def _by_second(records: Sequence[RequestRecord], policy: LoadTestPolicy) -> tuple[SecondOfTraffic, ...]:
    end = int(max(record.arrives_at for record in records)) + 1
    groups: list[list[RequestRecord]] = [[] for _ in range(end)]
    for record in records:
        groups[int(record.arrives_at)].append(record)
    return tuple(_second(number, group, policy) for number, group in enumerate(groups))


def _second(number: int, records: Sequence[RequestRecord], policy: LoadTestPolicy) -> SecondOfTraffic:
    answered = [record for record in records if not record.error]
    return SecondOfTraffic(
        second=number,
        arrived=len(records),
        failed=len(records) - len(answered),
        good=sum(is_good(record, policy) for record in records),
        output_tokens=sum(record.output_tokens for record in answered),
        first_token_milliseconds=_median_ms([r.first_token_seconds for r in answered if r.first_token_seconds]),
        end_to_end_milliseconds=_median_ms([record.total_seconds for record in answered]),
    )


def _median_ms(seconds: Sequence[float]) -> float | None:
    return 1e3 * float(np.median(seconds)) if seconds else None

"""A load test of a server that exists only as a queue: what the stage leaves behind, without a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.config.policy import LoadTestPolicy, RateSearch, ServiceLevel
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import (
    LoadTestOutcome,
    Phase,
    RatePoint,
    ServerUse,
    TokenCost,
    WindowSummary,
    write_outcome,
)
from llm_pipeline.loadtest.records import Fault, Records, write_records
from llm_pipeline.loadtest.session import highest_passed, summarize_window
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

LEVEL = ServiceLevel(
    first_token_milliseconds=250.0,
    end_to_end_milliseconds=1500.0,
    time_per_output_token_milliseconds=25.0,
    longest_stall_milliseconds=500.0,
)
POLICY = LoadTestPolicy(service_level=LEVEL, search=RateSearch())
TARGET_RATE = 20.0
CONFIRMED_RATE = 50.0
_CAPACITY = 65.0
_STALL_SECONDS = 0.4
_SEARCHED = (40.0, 80.0, 56.6, 67.3, 61.7, 59.1, 64.4)


def measured_window(
    rate: float, seconds: float, seed: int, *, capacity: float = _CAPACITY, broken: int = 0, stall_at: float = -1.0
) -> tuple[Traffic, MeasuredWindow]:
    """Poisson arrivals at a queue with one server; the last `broken` requests are cut, and once it stalls."""
    draw = np.random.default_rng(seed)
    arrivals = np.cumsum(draw.exponential(1.0 / rate, int(rate * seconds)))
    arrivals *= seconds / arrivals[-1] * 0.999
    count = len(arrivals)
    work = draw.gamma(4.0, 0.25 / capacity, count)
    waits = np.zeros(count)
    for place in range(1, count):
        waits[place] = max(0.0, waits[place - 1] + work[place - 1] - (arrivals[place] - arrivals[place - 1]))
    load = min(1.0, rate / capacity)
    tokens = np.clip(draw.lognormal(3.3, 0.4, count), 4, 64).astype(np.int32)
    first = waits + draw.lognormal(-3.3, 0.25, count) * (1.0 + load)
    pace = draw.lognormal(-4.7, 0.12, count) * (1.0 + 0.8 * load)
    stalled = (arrivals < stall_at) & (stall_at < arrivals + first + pace * tokens)
    gaps = np.where(stalled, _STALL_SECONDS, pace * draw.uniform(1.5, 3.0, count))
    last = first + pace * (tokens - 1) + np.where(stalled, _STALL_SECONDS, 0.0)
    fault = np.zeros(count, np.uint8)
    fault[count - broken :] = Fault.CUT
    records = Records(
        {
            "number": np.arange(count),
            "arrives_at": arrivals,
            "lag_seconds": draw.exponential(0.0004, count),
            "first_token_seconds": first,
            "last_token_seconds": last,
            "total_seconds": last + 0.001,
            "longest_gap_seconds": gaps,
            "input_tokens": draw.integers(20, 200, count).astype(np.int32),
            "output_tokens": tokens,
            "asked_tokens": tokens,
            "status": np.full(count, 200, np.int16),
            "fault": fault,
        },
        {Fault.CUT: "connection reset by peer"} if broken else {},
    )
    traffic = Traffic([LoadRequest("p", int(n)) for n in tokens], seconds, arrivals)
    use = ServerUse(
        queue_milliseconds=1e3 * float(waits.mean()),
        active_requests=int(40 * load),
        kv_cache_fraction=0.9 * load,
        output_tokens=int(tokens.sum()),
        samples=int(seconds),
    )
    return traffic, MeasuredWindow(records, seconds, use)


def sample_load_test(directory: Path, *, broken: int = 0, seconds: float = 16.0) -> LoadTestOutcome:
    """A whole load test, written as the stage writes it: closed loops, target, search, confirmation in 3 windows."""
    windows: list[WindowSummary] = []

    def window(name: str, phase: Phase, rate: float, length: float, **how: float) -> WindowSummary:
        seed = len(windows)
        traffic, measured = measured_window(rate, length, seed, **how)
        if phase in ("floor", "ceiling"):
            users = 1 if phase == "floor" else 32
            traffic = Traffic(traffic.requests, length, concurrency=users)
        if phase != "search":
            write_records(directory / f"{name}.csv.gz", measured.records)
        windows.append(summarize_window(name, phase, traffic, measured, POLICY))
        return windows[-1]

    window("floor", "floor", 3.0, 10.0)
    window("ceiling", "ceiling", 54.0, 10.0)
    target = window("target", "target", TARGET_RATE, seconds)
    points = [_point(TARGET_RATE, target)]
    for number, rate in enumerate(_SEARCHED):
        points.append(_point(rate, window(f"search-{number + 1}", "search", rate, 8.0)))
    for number in range(3):
        window(
            f"confirmation-1-{number + 1}", "confirmation", CONFIRMED_RATE, seconds,
            stall_at=0.6 * seconds if number == 1 else -1.0, broken=broken if number == 2 else 0,
        )  # fmt: skip
    rates = tuple(sorted(points, key=lambda point: point.rate_per_second))
    outcome = LoadTestOutcome(
        target_rate_per_second=TARGET_RATE,
        windows=tuple(windows),
        rates=rates,
        highest_rate_per_second=highest_passed(rates),
        confirmed_rate_per_second=None if broken else CONFIRMED_RATE,
        token_cost=TokenCost(estimate=0.42, lower=0.38, upper=0.43, currency="USD"),
        notes=("The GPU's memory is not told by this server.",),
        judgement=_judgement(broken),
    )  # fmt: skip
    write_outcome(directory, outcome)
    return outcome


def _point(rate: float, window: WindowSummary) -> RatePoint:
    verdict = Verdict.GO if window.good_fraction >= POLICY.attainment else Verdict.NO_GO
    return RatePoint(rate_per_second=rate, good_fraction=window.good_fraction, verdict=verdict, window=window.name)


def _judgement(broken: int) -> Judgement:
    facts = [
        Evidence(name="failed requests", verdict=Verdict.NO_GO if broken else Verdict.GO, measured=broken, samples=960),
        Evidence(
            name="service level met",
            verdict=Verdict.GO,
            measured=0.97,
            lower=0.96,
            limit=0.95,
            unit="fraction",
            samples=960,
        ),
    ]
    return judge(
        f"{broken} requests failed." if broken else f"At {CONFIRMED_RATE:g}/s the service level is met.", facts
    )

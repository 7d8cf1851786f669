"""A load test from the first request to the verdict.

    outcome = run_session(windows, users=32)

    warm-up         until the times are steady
    floor           one user: how fast the server is when it is alone
    ceiling         as many users as the engine holds: how much it can do
    target          the workload's rate
    search          the highest rate that meets the service level, by short probes
    confirmation    a share of that rate, never below the target; longer, on fresh seeds, extended while undecided
    soak            long, if the policy asks for it, and judged like any other window

The verdict comes from the confirmation, and from what may veto it. When the target window alone shows that the
service level is missed, or shows what cannot be, that is the verdict.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Verdict, judge
from llm_pipeline.loadtest.confirmation import Decision, Limits, confirm
from llm_pipeline.loadtest.duration import alone_seconds
from llm_pipeline.loadtest.floor import FloorTimes
from llm_pipeline.loadtest.gate import judge_windows, probe_verdict
from llm_pipeline.loadtest.outcome import LoadTestOutcome, RatePoint
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.search import highest_passed, search_highest_rate
from llm_pipeline.loadtest.soak import judge_soak
from llm_pipeline.loadtest.steady import FEWEST, steady_from
from llm_pipeline.loadtest.windows import Windows

_WARMUP_SLICES = 5
_WARMUP_SECONDS = 60.0
_ALONE_REQUESTS = 60
_REQUESTS_A_USER = 200
_BEYOND_CEILING = 1.2
"""Rates much above what the closed loop got through are not worth a probe."""

_log = get_logger(__name__)


@dataclass(frozen=True)
class WarmUp:
    """What it took to reach the steady state; `steady` is False when the cap came first."""

    requests: int
    seconds: float
    steady: bool


def run_session(windows: Windows, *, users: int, physics: PhysicalLimits | None = None) -> LoadTestOutcome:
    """Run a load test.

    Args:
        windows: What measures.
        users: Requests that the engine holds at a time: users of the ceiling.
        physics: What the hardware allows at best; None where that is not known.

    Raises:
        Transient: Nobody answers.
    """
    warm = warm_up(windows, users)
    seconds = alone_seconds(windows.workload)
    floor = windows.closed("floor", 1, seconds, most=_ALONE_REQUESTS, keep=True)
    windows.closed("ceiling", users, seconds, most=users * _REQUESTS_A_USER, keep=True)
    limits = Limits(FloorTimes.of(floor), physics)
    rate = windows.workload.rate_per_second
    target = windows.open("target", "target", rate, windows.workload.duration_seconds, keep=True)
    judgement = judge_windows(
        [target], windows.policy, floor=limits.floor, physics=physics, servers=[windows.summaries[-1].server]
    )
    if judgement.verdict is Verdict.ANOMALOUS:
        return _outcome(windows, warm, Decision(judgement), ())
    rates = search(windows, target)
    if judgement.verdict is Verdict.NO_GO:
        return _outcome(windows, warm, Decision(judgement), rates)
    return _outcome(windows, warm, confirm(windows, highest_passed(rates), limits), rates)


def warm_up(windows: Windows, users: int) -> WarmUp:
    """Send requests until their times are steady, or until the cap.

    Raises:
        Transient: Not one request was answered.
    """
    started, times, requests, steady = time.monotonic(), np.empty(0), 0, False
    least = max(FEWEST, windows.workload.warmup_requests)
    for _ in range(_WARMUP_SLICES):
        left = _WARMUP_SECONDS - (time.monotonic() - started)
        if steady or left <= 0:
            break
        records = windows.warm_up(max(1, users // 2), left, most=least)
        requests += len(records)
        times = np.concatenate([times, _times(records)])
        steady = steady_from(times) is not None
    if not len(times):
        raise Transient("no warm-up request was answered", where="load test", hint="look at the server's log")
    seconds = time.monotonic() - started
    _log.info("warmed up", requests=requests, seconds=round(seconds, 2), steady=steady)
    return WarmUp(requests, seconds, steady)


def _times(records: Records) -> NDArray[np.float64]:
    """Of each answer: to its first token, or to its end if it was not streamed."""
    first, total = records["first_token_seconds"], records["total_seconds"]
    times: NDArray[np.float64] = np.where(np.isnan(first), total, first)[records.answered]
    return times


def search(windows: Windows, first: Records) -> tuple[RatePoint, ...]:
    """Look for the highest rate that meets the service level; nothing when the policy wants no search.

    Args:
        windows: What measures; its last window was the target's.
        first: The records of the target's window.
    """
    wanted, target = windows.policy.search, windows.workload.rate_per_second
    if wanted is None:
        return ()
    ceiling = next(summary for summary in windows.summaries if summary.phase == "ceiling")
    most = max(target, min(wanted.maximum_multiple * target, _BEYOND_CEILING * ceiling.answered_per_second))
    numbers = count(1)

    def probe(rate: float) -> RatePoint:
        seconds = max(wanted.window_seconds, wanted.minimum_requests / rate)
        return _point(windows, rate, windows.open(f"search-{next(numbers)}", "search", rate, seconds))

    return search_highest_rate(_point(windows, target, first), most, wanted, probe)


def _point(windows: Windows, rate: float, records: Records) -> RatePoint:
    summary = windows.summaries[-1]
    return RatePoint(
        rate_per_second=rate,
        good_fraction=summary.good_fraction,
        good_per_second=summary.good_per_second,
        verdict=probe_verdict(records, windows.policy),
        window=summary.name,
    )


def _outcome(windows: Windows, warm: WarmUp, decision: Decision, rates: tuple[RatePoint, ...]) -> LoadTestOutcome:
    judgement, soak = decision.judgement, windows.policy.soak
    if soak is not None and judgement.verdict is Verdict.GO:
        records = windows.open("soak", "soak", windows.workload.rate_per_second, soak.duration_seconds, keep=True)
        facts = judge_soak(records, windows.summaries[-1], soak, windows.policy)
        decided = judge(judgement.summary, (*judgement.evidence, *facts))
        worse = next(
            (fact for fact in facts if decided.verdict is not Verdict.GO and fact.verdict is decided.verdict), None
        )
        judgement = decided.model_copy(update={"summary": f"{worse.name}: {worse.detail}"}) if worse else decided
    return LoadTestOutcome(
        target_rate_per_second=windows.workload.rate_per_second,
        warmup_requests=warm.requests,
        warmup_seconds=warm.seconds,
        windows=tuple(windows.summaries),
        rates=rates,
        highest_rate_per_second=highest_passed(rates),
        confirmed_rate_per_second=decision.rate_per_second,
        notes=() if warm.steady else (_unsteady(warm),),
        judgement=judgement,
    )


def _unsteady(warm: WarmUp) -> str:
    return f"Latencies were not steady after {warm.requests} warm-up requests in {warm.seconds:.0f} s."

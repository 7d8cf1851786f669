"""How soon does traffic follow, and is any of it lost? Weight changes and rollbacks through the real proxy, under load.

    make bench-canary-routing
    python benchmarks/canary_routing.py --changes 400

Users send unary HTTP, server-sent events, unary gRPC and gRPC streams at once, through Envoy, to two small servers that
answer like Triton (those of tests/canary). First the weights change 10 -> 50 -> 100 -> 0 % many times, and the access
log says where each request went. Then a candidate at 5 % of 20 requests/s begins to fail every request, several times,
and the controller with the default policy finds out.

One line a goal; exit code 1 when one is missed. It uses the ports from 18540 on.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from goals import at_most, goal
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "canary"))

from live_site import LiveSite

from llm_pipeline.canary.access_log import AccessLog, LogCursor, ObservedRequest
from llm_pipeline.canary.record import Phase
from llm_pipeline.canary.router import ALL, RouteState, all_to
from llm_pipeline.config.policy import CanaryPolicy

PERCENTS = (10.0, 50.0, 100.0, 0.0)
RATE, ROLLBACK_RATE, ROLLBACK_PERCENT = 200.0, 20.0, 5.0
HELD_SECONDS = 0.25
CONFIDENCE = 0.999
SPLIT_SECONDS, ROLLBACK_SECONDS = 0.25, 10.0

_POLL_SECONDS = 0.002
_LOG_SECONDS = 1.0
_HEALTHY_SECONDS = 3.0


@dataclass(frozen=True)
class Change:
    """One change of the weights; times are seconds since 1970."""

    percent: float
    written_at: float
    acknowledged_at: float
    until: float


def main() -> int:
    """Measure both, print what was found, and the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200, help="changes of the weights")
    parser.add_argument("--rollbacks", type=int, default=7, help="candidates that begin to fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="canary-routing-") as root:
        site = LiveSite(Path(root))
        try:
            site.up()
            met = [*_weights(site, options.changes), *_rollbacks(site, options.rollbacks)]
        finally:
            site.down()
    return 0 if all(met) else 1


def _weights(site: LiveSite, count: int) -> Iterator[bool]:
    site.control.replace("green", None)
    site.mixed_users(RATE)
    changes = [_change(site, PERCENTS[number % len(PERCENTS)], epoch=number + 1) for number in range(count)]
    site.users_go()
    traffic = site.traffic()
    time.sleep(_LOG_SECONDS)
    requests = _by_start(site)
    kinds = ", ".join(f"{sent:,} {kind}" for kind, sent in traffic["sent"].items())
    failed = sum(traffic["failed"].values())
    print(f"{count} changes of the weights at {RATE:g} requests/s: {kinds}; {failed} failed {traffic['reasons']}")
    yield at_most(f"requests failed in {count} changes of the weights", failed, 0)
    for percent in PERCENTS:
        yield _split(percent, [change for change in changes if change.percent == percent], requests)
    measured = [_until_split(change, requests) for change in changes if change.percent in (0.0, 100.0)]
    yield at_most(
        f"from a write to the measured split ({_milliseconds(measured)}), p99",
        float(np.quantile(measured, 0.99)),
        SPLIT_SECONDS,
        "s",
    )


def _change(site: LiveSite, percent: float, *, epoch: int) -> Change:
    green = round(percent * ALL / 100)
    weights = {"blue": ALL - green, "green": green}
    written_at = time.time()
    want = RouteState.model_validate({"weights": weights, "candidate": "green", "owner": "benchmark", "epoch": epoch})
    revision = site.router.write(want, None)
    while not site.router.converged(revision):
        time.sleep(_POLL_SECONDS)
    acknowledged_at = time.time()
    time.sleep(HELD_SECONDS)
    return Change(percent, written_at, acknowledged_at, time.time())


def _by_start(site: LiveSite) -> list[ObservedRequest]:
    found, _ = AccessLog(site.router.files.access_log, site.router.slot_of_address).read(LogCursor())
    return sorted(found, key=lambda request: request.started_at)


def _between(requests: Sequence[ObservedRequest], since: float, until: float) -> Sequence[ObservedRequest]:
    first = bisect.bisect_left(requests, since, key=lambda request: request.started_at)
    return requests[first : bisect.bisect_left(requests, until, key=lambda request: request.started_at)]


def _split(percent: float, changes: Sequence[Change], requests: Sequence[ObservedRequest]) -> bool:
    """Whether the candidate's share, over all times that these weights were in force, is within its interval."""
    held = [request for one in changes for request in _between(requests, one.acknowledged_at, one.until)]
    taken = sum(request.arm == "green" for request in held)
    low, high = stats.binom.interval(CONFIDENCE, len(held), percent / 100)
    return goal(
        f"split at {percent:g} %",
        f"{taken:,} of {len(held):,}, {100 * taken / max(1, len(held)):.2f} %",
        f"{low:.0f} to {high:.0f} ({100 * CONFIDENCE:g} % binomial interval)",
        met=bool(held) and low <= taken <= high,
    )


def _until_split(change: Change, requests: Sequence[ObservedRequest]) -> float:
    """Seconds from the write of 0 or 100 % to the first request after which none went the other way."""
    right = "green" if change.percent == 100.0 else "blue"
    seen = _between(requests, change.written_at, change.until)
    wrong = [place for place, request in enumerate(seen) if request.arm != right]
    first = wrong[-1] + 1 if wrong else 0
    return (seen[first].started_at if first < len(seen) else change.until) - change.written_at


def _rollbacks(site: LiveSite, count: int) -> Iterator[bool]:
    site.control.stop("green")
    site.router.write(all_to("blue", owner="benchmark", epoch=site.router.read()[0].epoch + 1), None)
    site.mixed_users(ROLLBACK_RATE)
    seconds = [_rollback(site) for _ in range(count)]
    site.users_go()
    failed = sum(site.traffic()["failed"].values())
    words = ", ".join(f"{taken:.1f}" for taken in sorted(seconds))
    print(f'from "fails every request" at {ROLLBACK_PERCENT:g} % to all traffic on stable: {words} s')
    yield at_most(f"requests failed in {count} rollbacks", failed, 0)
    yield at_most(
        "from failing every request to stable at 100 %, median", statistics.median(seconds), ROLLBACK_SECONDS, "s"
    )
    yield at_most("from failing every request to stable at 100 %, worst", max(seconds), ROLLBACK_SECONDS, "s")


def _rollback(site: LiveSite) -> float:
    """Seconds from a candidate's first failure to Envoy's word that stable has all traffic again."""
    trial = site.begin_trial()
    trial.policy = CanaryPolicy(steps_percent=(ROLLBACK_PERCENT, 100.0)).model_dump()
    try:
        running = trial.start(ROLLBACK_PERCENT)
        trial.await_phase(Phase.BAKING, ROLLBACK_PERCENT)
        time.sleep(_HEALTHY_SECONDS)
        site.control.fault(trial.candidate, failure_fraction=1.0)
        began = time.monotonic()
        while not _all_on(site, trial.stable):
            time.sleep(_POLL_SECONDS)
        taken = time.monotonic() - began
        running.result(timeout=60)
    finally:
        trial.end()
    return taken


def _all_on(site: LiveSite, slot: str) -> bool:
    state, revision = site.router.read()
    return state.weights.get(slot) == ALL and site.router.converged(revision) is True  # type: ignore[call-overload]


def _milliseconds(seconds: Sequence[float]) -> str:
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1000
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())

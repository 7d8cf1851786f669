"""The comparison with production: both versions in turn on the same host, with the same requests.

    evidence = compare(candidate, production, source, policy, 20.0, seed=7)

A round is a pair of windows of the same traffic, one per server, in alternating order. Effects of the host on both (a
neighbour, heat, a lower clock) cancel in their ratio, and a slow drift cancels in the mean over rounds; a figure stored
last month would contain both. The logarithm of a pair's ratio is one observation, and the gate's bound of the mean over
pairs decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from statistics import median

import numpy as np

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.gate import void_reason
from llm_pipeline.loadtest.measure import LoadClient
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.workload import TrafficSource
from llm_pipeline.statistics.intervals import bounds_of_mean, more_than

MEASURES: dict[str, Callable[[Records], float]] = {
    "first token, p90": lambda window: float(np.nanquantile(window["first_token_seconds"], 0.9)),
    "time per output token, p50": lambda window: float(np.nanmedian(window.time_per_output_token_seconds)),
    "whole answer, p90": lambda window: float(np.quantile(window["total_seconds"], 0.9)),
}
"""Figures of the answered requests of a window, in seconds; NaN where none of them has one."""

_MOST_VOID_ROUNDS = 3
_FEWEST_REQUESTS = 10
_log = get_logger(__name__)


def compare(
    candidate: LoadClient,
    production: LoadClient,
    source: TrafficSource,
    policy: LoadTestPolicy,
    rate_per_second: float,
    *,
    seed: int,
) -> tuple[Evidence, ...]:
    """Compare the speed of the candidate with that of production.

    Args:
        candidate: Sends to the candidate.
        production: Sends to a server of production's version beside it, never to production itself.
        source: Draws the traffic; each round has a seed of its own.
        policy: Its `regression` says how much slower is too slow.
        rate_per_second: Rate of the windows; both servers should hold their service level at it.
        seed: Seed of the first round.

    Returns:
        For each measure NO_GO when the candidate is shown to be too slow, GO when it is shown not to be, INCONCLUSIVE
        otherwise.

    Raises:
        ConfigError: The policy asks for no comparison.
        Transient: Nobody answers.
    """
    regression, tolerated = policy.regression, policy.maximum_error_fraction
    if regression is None:
        raise ConfigError("the policy asks for no comparison with production", where="load_test.regression")
    pairs, void = list[tuple[Records, Records]](), list[str]()
    requests = failed = 0
    for number in count():  # the first round only warms up: production's version was just started
        traffic = source.open_loop(rate_per_second, regression.window_seconds, seed + number)
        turns = (production, candidate) if len(pairs) % 2 or not number else (candidate, production)
        sent = {client: client.send(traffic).records for client in turns}
        first, second = sent[candidate], sent[production]
        if not number:
            continue
        lost, asked = int(np.sum(~second.judged.answered)), len(second.judged)
        if reason := void_reason(first, policy) or void_reason(second, policy):
            void.append(reason)
        elif asked < _FEWEST_REQUESTS:
            void.append(f"Only {asked} requests in a window: regression.window_seconds is too short for this rate.")
        elif more_than(tolerated, lost, asked, policy.confidence):
            said = next(iter(second.details.values()), "no reason given")
            void.append(f"Production's version failed {lost} of {asked} requests: {said}")
        else:  # the figures are of requests that both answered: a failure must not make a server look fast
            both = np.intersect1d(first["number"][first.answered], second["number"][second.answered])
            pairs.append((first.where(np.isin(first["number"], both)), second.where(np.isin(second["number"], both))))
            requests, failed = requests + len(first.judged), failed + int(np.sum(~first.judged.answered))
            if len(pairs) == regression.rounds:
                break
            continue
        _log.warning("a round is not counted", reason=void[-1])
        if len(void) > _MOST_VOID_ROUNDS:
            fact = Evidence(
                name="comparison with production",
                verdict=Verdict.INCONCLUSIVE,
                measured=float(len(pairs)),
                limit=float(regression.rounds),
                unit="rounds",
                samples=len(pairs),
                detail=f"{len(void)} rounds were not counted. The last one: {void[-1]}",
            )
            return (fact,)
    facts = [
        Evidence(
            name="failed requests beside production",
            verdict=Verdict.NO_GO if more_than(tolerated, failed, requests, policy.confidence) else Verdict.GO,
            measured=failed / requests,
            limit=tolerated,
            unit="fraction",
            samples=requests,
            detail=f"{failed} of {requests} requests." if failed else "None failed.",
        )
    ]
    for name, figure in MEASURES.items():
        ours = [figure(pair[0]) if len(pair[0]) else math.nan for pair in pairs]
        theirs = [figure(pair[1]) if len(pair[1]) else math.nan for pair in pairs]
        if not all(value > 0.0 for value in (*ours, *theirs)):  # NaN too: nothing was streamed, or one token asked for
            continue
        logarithms = [math.log(value / other) for value, other in zip(ours, theirs, strict=True)]
        ratio, lower, upper = map(math.exp, bounds_of_mean(logarithms, policy.confidence))
        mine, other = 1e3 * median(ours), 1e3 * median(theirs)
        limit = regression.maximum_ratio
        facts.append(
            Evidence(
                name=f"{name}, relative to production",
                verdict=Verdict.NO_GO if lower > limit else Verdict.INCONCLUSIVE if upper > limit else Verdict.GO,
                measured=ratio,
                lower=lower,
                upper=upper,
                confidence=policy.confidence,
                limit=limit,
                unit="ratio",
                samples=len(pairs),
                detail=f"{mine:.4g} ms, and {other:.4g} of production's version beside it.",
            )
        )
    return tuple(facts)

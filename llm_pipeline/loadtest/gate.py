"""The load gate: do the records show, with confidence, that the server holds its service level at this rate?

    judgement = judge_load_test(records, policy)

A request that failed has missed every limit. Shares of good requests are exact binomial (Clopper-Pearson 1934)
one-sided statements, as in MLPerf Inference's early stopping: GO when even the lower bound attains, NO_GO when even
the upper one does not. Requests that share a queue are not independent, so the bounds are somewhat optimistic; two
seeds are worth more than one long run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from llm_pipeline.accuracy.intervals import clopper_pearson_upper
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.records import RequestRecord
from llm_pipeline.verdict import Evidence, Judgement, Verdict, judge

MINIMUM_RATE_SHARE = 0.98
"""A client that sent less than this share of the offered rate has not offered it."""

_LAG_QUANTILE = 0.99
_SHOWN = 3


def judge_load_test(records: Sequence[RequestRecord], policy: LoadTestPolicy) -> Judgement:
    """Judge the records of a load test.

    Returns:
        ANOMALOUS for results that cannot be, NO_GO for too many errors or a missed service level, INCONCLUSIVE for
        too few requests, a load generator that could not keep up, or too wide bounds; GO otherwise.
    """
    impossible = _impossible(records)
    client = [_client_lag(records, policy), _client_rate(records)]
    enough = _enough(records, policy)
    usable = all(fact.verdict is Verdict.GO for fact in (*client, enough))
    level = policy.service_level
    attainment = [
        _attainment("service level met", records, policy, usable, lambda record: is_good(record, policy)),
        _attainment("first token in time", records, policy, usable, lambda r: _first_token_in_time(r, policy)),
        _attainment("whole answer in time", records, policy, usable, lambda r: _whole_answer_in_time(r, policy)),
    ]
    facts = [*impossible, _errors(records, policy), *attainment, enough, *client]
    judgement = judge("", facts)
    limits = (
        f"{level.first_token_milliseconds:g} ms to the first token, {level.end_to_end_milliseconds:g} ms to the end"
    )
    return judgement.model_copy(update={"summary": _summary(judgement, limits, policy)})


def is_good(record: RequestRecord, policy: LoadTestPolicy) -> bool:
    """Whether a request was answered, and within both limits of the service level."""
    return _first_token_in_time(record, policy) and _whole_answer_in_time(record, policy)


def client_lag_seconds(records: Sequence[RequestRecord]) -> float:
    """The p99 of how late the client sent."""
    lags = sorted(record.lag_seconds for record in records)
    return lags[math.ceil(_LAG_QUANTILE * len(lags)) - 1]


def rate_share(records: Sequence[RequestRecord]) -> float:
    """Rate of the sends divided by the rate of the schedule; below 1 when the client fell behind."""
    offered = records[-1].arrives_at - records[0].arrives_at
    sent = max(r.arrives_at + r.lag_seconds for r in records) - (records[0].arrives_at + records[0].lag_seconds)
    return 1.0 if sent <= 0 else min(1.0, offered / sent)


def _first_token_in_time(record: RequestRecord, policy: LoadTestPolicy) -> bool:
    limit = policy.service_level.first_token_milliseconds
    return not record.error and record.first_token_seconds is not None and 1e3 * record.first_token_seconds <= limit


def _whole_answer_in_time(record: RequestRecord, policy: LoadTestPolicy) -> bool:
    return not record.error and 1e3 * record.total_seconds <= policy.service_level.end_to_end_milliseconds


def _attainment(
    name: str,
    records: Sequence[RequestRecord],
    policy: LoadTestPolicy,
    usable: bool,
    good: Callable[[RequestRecord], bool],
) -> Evidence:
    total, hits = len(records), sum(good(record) for record in records)
    if total == 0:
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=policy.attainment, unit="fraction")
    lower = 1.0 - clopper_pearson_upper(total - hits, total, policy.confidence)
    upper = clopper_pearson_upper(hits, total, policy.confidence)
    verdict = Verdict.INCONCLUSIVE
    if usable and lower >= policy.attainment:
        verdict = Verdict.GO
    elif usable and upper < policy.attainment:
        verdict = Verdict.NO_GO
    return Evidence(
        name=name,
        verdict=verdict,
        measured=hits / total,
        lower=lower,
        upper=upper,
        limit=policy.attainment,
        unit="fraction",
        samples=total,
        detail=f"{total - hits} of {total} requests missed it; bounds at {100 * policy.confidence:g} % each.",
    )


def _errors(records: Sequence[RequestRecord], policy: LoadTestPolicy) -> Evidence:
    failed = [record for record in records if record.error]
    total, limit = len(records), policy.maximum_error_fraction
    if total == 0:
        return Evidence(name="failed requests", verdict=Verdict.INCONCLUSIVE, limit=limit, unit="fraction")
    return Evidence(
        name="failed requests",
        verdict=Verdict.NO_GO if len(failed) / total > limit else Verdict.GO,
        measured=len(failed) / total,
        upper=clopper_pearson_upper(len(failed), total, policy.confidence),
        limit=limit,
        unit="fraction",
        samples=total,
        detail=f"{len(failed)} failed: {_reasons(failed)}." if failed else "None failed.",
    )


def _enough(records: Sequence[RequestRecord], policy: LoadTestPolicy) -> Evidence:
    answered = sum(not record.error for record in records)
    enough = answered >= policy.minimum_requests
    return Evidence(
        name="answered requests",
        verdict=Verdict.GO if enough else Verdict.INCONCLUSIVE,
        measured=float(answered),
        limit=float(policy.minimum_requests),
        unit="requests",
        samples=answered,
        detail="" if enough else "Too few to say anything about a share: raise the workload's duration or rate.",
    )


def _client_lag(records: Sequence[RequestRecord], policy: LoadTestPolicy) -> Evidence:
    name, limit = "client's own delay, p99", policy.maximum_client_lag_milliseconds
    lag = 1e3 * client_lag_seconds(records) if records else math.nan
    if not math.isfinite(lag):
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=limit, unit="ms")
    return Evidence(
        name=name,
        verdict=Verdict.GO if lag <= limit else Verdict.INCONCLUSIVE,
        measured=lag,
        limit=limit,
        unit="ms",
        samples=len(records),
        detail="" if lag <= limit else "The load generator could not keep up: nothing is said about the server.",
    )


def _client_rate(records: Sequence[RequestRecord]) -> Evidence:
    name = "sent rate, share of the offered one"
    share = rate_share(records) if len(records) > 1 else math.nan
    if not math.isfinite(share):
        return Evidence(name=name, verdict=Verdict.INCONCLUSIVE, limit=MINIMUM_RATE_SHARE, unit="fraction")
    kept_up = share >= MINIMUM_RATE_SHARE
    return Evidence(
        name=name,
        verdict=Verdict.GO if kept_up else Verdict.INCONCLUSIVE,
        measured=share,
        limit=MINIMUM_RATE_SHARE,
        unit="fraction",
        samples=len(records),
        detail="" if kept_up else "The load generator could not keep up: nothing is said about the server.",
    )


def _impossible(records: Sequence[RequestRecord]) -> list[Evidence]:
    """Evidence of results that no server can produce; none when there are none."""
    found = [(record, reason) for record in records if (reason := impossibility(record))]
    if not found:
        return []
    shown = "; ".join(f"request {record.number}: {reason}" for record, reason in found[:_SHOWN])
    return [
        Evidence(
            name="impossible results",
            verdict=Verdict.ANOMALOUS,
            measured=float(len(found)),
            limit=0.0,
            unit="requests",
            samples=len(records),
            detail=f"{shown}. The measurement is broken, or the server does not do what it says.",
        )
    ]


def impossibility(record: RequestRecord) -> str:
    """Why a record cannot be true; empty when it can."""
    first, total, sent = record.first_token_seconds, record.total_seconds, record.lag_seconds
    times = (total, sent, total if first is None else first)
    if not all(math.isfinite(value) for value in times):
        return "a latency is not a number"
    checks = (
        (
            record.output_tokens > record.asked_tokens,
            f"{record.output_tokens} tokens of {record.asked_tokens} asked for",
        ),
        (total <= 0, "it took no time"),
        (first is not None and first <= max(0.0, sent), "its first token came before the request was sent"),
        (first is not None and first > total, "its first token came after its end"),
        (
            not record.error and (first is None or record.output_tokens == 0),
            "it counts as answered but has no token",
        ),
    )
    return next((reason for wrong, reason in checks if wrong), "")


def _reasons(failed: Sequence[RequestRecord]) -> str:
    counts: dict[str, int] = {}
    for record in failed:
        counts[record.error] = counts.get(record.error, 0) + 1
    most = sorted(counts.items(), key=lambda item: -item[1])[:_SHOWN]
    return "; ".join(f"{count} x {reason}" for reason, count in most)


def _summary(judgement: Judgement, limits: str, policy: LoadTestPolicy) -> str:
    promise = f"at least {100 * policy.attainment:g} % of requests within {limits}"
    if judgement.verdict is Verdict.GO:
        return f"Shown at {100 * policy.confidence:g} % confidence: {promise}."
    fact = next(fact for fact in judgement.evidence if fact.verdict is judgement.verdict)
    telling = next(
        (f for f in judgement.evidence if f.verdict is judgement.verdict and "could not keep" in f.detail), fact
    )
    return f"Not shown: {promise}. {telling.name}: {telling.detail}"

"""Compares the lengths of the candidate's and production's answers when they may end by themselves.

All other windows force a number of tokens, so they cannot show a model that rambles or stops early. A quantized model
that misses its end token costs users time and owners tokens, at any latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llm_pipeline.base.verdict import Evidence, Verdict
from llm_pipeline.config.policy import Regression
from llm_pipeline.loadtest.faults import Fault
from llm_pipeline.loadtest.outcome import Ratio
from llm_pipeline.loadtest.records import Records, same_requests
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.statistics.intervals import critical_value

if TYPE_CHECKING:
    from llm_pipeline.loadtest.measure import LoadClient

_USERS = 8
_LONGEST_SECONDS = 600.0
_FEWEST = 10
_ALPHA = 0.025
_NAME = "length of answers, by production's"


def compare_lengths(
    candidate: LoadClient, production: LoadClient, prompts: Sequence[LoadRequest], regression: Regression
) -> tuple[tuple[Ratio, ...], Evidence]:
    """Send prompts whose answers may end by themselves to both versions, and compare the mean lengths.

    Returns:
        The ratio, none with too few answers, and what it says: NO_GO when it is shown to be off by more than
        `maximum_length_drift` either way, GO when it is shown not to be.

    Raises:
        Transient: Nobody answers.
    """
    traffic = Traffic.closed_loop(prompts, min(_USERS, len(prompts)), _LONGEST_SECONDS)
    return judge_lengths(candidate.send(traffic).records, production.send(traffic).records, regression)


def judge_lengths(
    candidate: Records, production: Records, regression: Regression
) -> tuple[tuple[Ratio, ...], Evidence]:
    """The ratio of the mean lengths over the prompts that both answered, empty answers included.

    The interval is that of a ratio of paired means, linearised (W. G. Cochran, Sampling Techniques (1977), chapter 6).
    """
    drift = regression.maximum_length_drift
    ours, theirs = same_requests(candidate, production, (_ended(candidate), _ended(production)))
    lengths, reference = (records["output_tokens"].astype(float) for records in (ours, theirs))
    count = len(lengths)
    if count < _FEWEST or not reference.any():
        return (), _too_few(count, drift)
    ratio = float(lengths.sum() / reference.sum())
    error = float((lengths - ratio * reference).std(ddof=1)) / math.sqrt(count) / float(reference.mean())
    reach = critical_value(1.0 - _ALPHA, count - 1) * error
    found = Ratio(
        measure="length of answers",
        ratio=ratio,
        lower=max(0.0, ratio - reach),
        upper=ratio + reach,
        candidate=float(lengths.mean()),
        production=float(reference.mean()),
        unit="tokens",
        rounds=1,
    )
    return (found,), _evidence(found, drift, count)


def _ended(records: Records) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(records["fault"], (Fault.NONE, Fault.EMPTY))


def _evidence(found: Ratio, drift: float, count: int) -> Evidence:
    lower, upper = found.lower or 0.0, found.upper or 0.0
    verdict = Verdict.INCONCLUSIVE
    if lower > 1.0 + drift or upper < 1.0 - drift:
        verdict = Verdict.NO_GO
    elif lower >= 1.0 - drift and upper <= 1.0 + drift:
        verdict = Verdict.GO
    return Evidence(
        name=_NAME,
        verdict=verdict,
        measured=found.ratio,
        lower=found.lower,
        upper=found.upper,
        limit=1.0 + drift if found.ratio >= 1.0 else 1.0 - drift,
        unit="ratio",
        samples=count,
        detail=f"{found.candidate:.4g} tokens on the same prompts, and {found.production:.4g} of production's version.",
    )


def _too_few(count: int, drift: float) -> Evidence:
    return Evidence(
        name=_NAME,
        verdict=Verdict.INCONCLUSIVE,
        limit=1.0 + drift,
        unit="ratio",
        samples=count,
        detail=f"Both answered only {count} prompts with at least a token between them.",
    )

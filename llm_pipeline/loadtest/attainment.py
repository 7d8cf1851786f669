"""Which requests meet the service level, and by how much: each latency divided by its limit. Pure.

A failed request misses every limit. The time per output token is measured on answers of two tokens or more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.config.policy import ServiceLevel
from llm_pipeline.loadtest.records import Records

SERVICE_LEVEL_MET = "service level met"

Severity = NDArray[np.float64]
"""Each request's latency divided by its limit: above 1 is missed, infinite failed, NaN not measurable."""


def severities(records: Records, level: ServiceLevel) -> dict[str, Severity]:
    """The severity of each request for each limit, by the limit's name."""
    every, first = np.ones(len(records), np.bool_), level.first_token_milliseconds
    token, stall = level.time_per_output_token_milliseconds, level.longest_stall_milliseconds
    total = level.end_to_end_milliseconds
    found = {"first token in time": _severity(records, records["first_token_seconds"], first, every)}
    if token is not None:
        several = records["output_tokens"] > 1
        found["tokens in time"] = _severity(records, records.time_per_output_token_seconds, token, several)
    if stall is not None:
        found["no long stall"] = _severity(records, records["longest_gap_seconds"], stall, every)
    if total is not None:
        found["whole answer in time"] = _severity(records, records["total_seconds"], total, every)
    return found


def worst_severity(limits: dict[str, Severity]) -> Severity:
    """Each request's worst severity; infinite if none could be measured."""
    stacked = np.stack(list(limits.values()))
    worst: Severity = np.where(np.isnan(stacked), -np.inf, stacked).max(axis=0)
    return np.where(np.isneginf(worst), np.inf, worst)


def good(records: Records, level: ServiceLevel) -> NDArray[np.bool_]:
    """Which requests were answered, and within all limits of the service level."""
    return np.asarray(worst_severity(severities(records, level)) <= 1.0)


def level_in_words(level: ServiceLevel) -> str:
    """The limits for a sentence."""
    limits = (
        (level.first_token_milliseconds, "to the first token"),
        (level.time_per_output_token_milliseconds, "a token after it"),
        (level.longest_stall_milliseconds, "of silence"),
        (level.end_to_end_milliseconds, "to the end"),
    )
    return ", ".join(f"{limit:g} ms {words}" for limit, words in limits if limit is not None)


def _severity(records: Records, seconds: NDArray[np.float64], limit: float, asked: NDArray[np.bool_]) -> Severity:
    """Latency divided by its limit; an answer without that latency misses the limit."""
    by_limit = 1e3 * np.where(np.isnan(seconds), np.inf, seconds) / limit
    return np.where(records.answered, np.where(asked, by_limit, np.nan), np.inf)

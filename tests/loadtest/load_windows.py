"""Windows of a load test, made up request by request or in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from llm_pipeline.loadtest.records import COLUMNS, Fault, Records
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

RATE = 20.0
Row = dict[str, Any]


def answered(number: int, **changes: Any) -> Row:
    """A good answer of eight tokens, with some columns changed."""
    good = {
        "number": number, "arrives_at": number / RATE, "lag_seconds": 0.001, "first_token_seconds": 0.02,
        "last_token_seconds": 0.09, "total_seconds": 0.1, "longest_gap_seconds": 0.01, "input_tokens": 32,
        "output_tokens": 8, "asked_tokens": 8, "status": 200, "fault": Fault.NONE,
    }  # fmt: skip
    return {**good, **changes}


def records(rows: Iterable[Row], details: dict[Fault, str] | None = None) -> Records:
    table = np.array([[row[name] for name in COLUMNS] for row in rows], np.float64)
    return Records.of_rows(table.reshape(-1, len(COLUMNS)), details)


def window(good: int, bad: int = 0, **changes: Any) -> Records:
    """A window whose bad requests come at places drawn once and for all, so that they do not cluster."""
    places = set(np.random.default_rng(1).permutation(good + bad)[:bad].tolist())
    return records(answered(k, **(changes if k in places else {})) for k in range(good + bad))


class Source:
    """Traffic at regular times, whose prompts name their seed."""

    def closed_loop(self, users: int, seconds: float, seed: int, *, maximum_requests: int) -> Traffic:
        return Traffic([LoadRequest(f"{seed} {n}", 8) for n in range(maximum_requests)], seconds, concurrency=users)

    def open_loop(self, rate: float, seconds: float, seed: int) -> Traffic:
        return self.windows(rate, seconds, [seed])

    def windows(self, rate: float, seconds: float, seeds: Sequence[int]) -> Traffic:
        count = round(rate * seconds)
        requests = [LoadRequest(f"{seed} {n}", 8) for seed in seeds for n in range(count)]
        return Traffic(tuple(requests), seconds * len(seeds), np.arange(len(requests)) / rate)

"""Windows of a load test, made up request by request or in bulk."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.loadtest.records import COLUMNS, Answered, Records, column_type

RATE = 20.0


def answered(number: int, **changes: Any) -> Answered:
    """A good answer of eight tokens, with some columns changed."""
    good: dict[str, Any] = {
        "number": number,
        "arrives_at": number / RATE,
        "lag_seconds": 0.001,
        "first_token_seconds": 0.02,
        "last_token_seconds": 0.09,
        "total_seconds": 0.1,
        "longest_gap_seconds": 0.01,
        "input_tokens": 32,
        "output_tokens": 8,
        "asked_tokens": 8,
        "status": 200,
    }
    return Answered(**{**good, **changes})


def window(good: int, bad: int = 0, **changes: Any) -> Records:
    """A window whose bad requests come at places drawn once and for all, so that they do not cluster."""
    places = set(np.random.default_rng(1).permutation(good + bad)[:bad].tolist())
    return Records.of(answered(k, **(changes if k in places else {})) for k in range(good + bad))


def bulk(first_token_seconds: NDArray[np.float64]) -> Records:
    """A window of answers with these times to their first token."""
    requests = len(first_token_seconds)
    row = answered(0)
    columns = {name: np.full(requests, getattr(row, name), dtype=column_type(name)) for name in COLUMNS}
    columns["number"] = np.arange(requests)
    columns["arrives_at"] = np.arange(requests) / RATE
    columns["first_token_seconds"] = 0.001 + first_token_seconds
    columns["last_token_seconds"] = columns["first_token_seconds"] + 0.07
    columns["total_seconds"] = columns["last_token_seconds"] + 0.01
    return Records(columns)

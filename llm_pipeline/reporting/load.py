"""Reading what a load test left behind into the shapes that the plots draw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.outcome import LoadTestOutcome, deciding_windows, read_outcome
from llm_pipeline.loadtest.records import Records, join, read_records
from llm_pipeline.reporting.model import LatencyCurve, LoadStudy

_STEPS = 240
"""Points of a curve; more cannot be told apart in a plot."""


def read_load(directory: Path, target: str, policy: LoadTestPolicy) -> LoadStudy:
    """The load test of one target.

    Raises:
        IntegrityError: The outcome is missing, or it or the records are damaged.
    """
    outcome = read_outcome(directory)
    records = _deciding_records(directory, outcome)
    return LoadStudy(
        target=target, policy=policy, outcome=outcome, curves=tuple(_curves(records.judged)) if records else ()
    )


def _deciding_records(directory: Path, outcome: LoadTestOutcome) -> Records | None:
    """The requests behind the verdict, all windows together; None when they were not kept."""
    paths = [directory / f"{window.name}.csv.gz" for window in deciding_windows(outcome)]
    kept = [read_records(path) for path in paths if path.exists()]
    return join(kept) if kept else None


def _curves(records: Records) -> Iterator[LatencyCurve]:
    answered, streamed = records.answered, records["streamed"]
    several = streamed & (records["output_tokens"] > 1)
    for name, seconds, asked in (
        ("first token", records["first_token_seconds"], streamed),
        ("end to end", records["total_seconds"], np.ones_like(answered)),
        ("time per output token", records.time_per_output_token_seconds, several),
        ("longest stall", records["longest_gap_seconds"], several),
    ):
        yield from _curve(name, seconds[answered & asked], int(asked.sum()))


def _curve(name: str, seconds: NDArray[np.float64], asked: int) -> Iterator[LatencyCurve]:
    """The empirical distribution; requests without an answer keep it below one."""
    values = 1e3 * np.sort(seconds[seconds > 0.0])
    if not values.size:
        return
    picks = np.unique(np.linspace(0, values.size - 1, _STEPS).astype(int))
    yield LatencyCurve(
        name=name, milliseconds=tuple(values[picks].tolist()), shares=tuple(((picks + 1) / asked).tolist())
    )

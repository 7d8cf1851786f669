"""The findings of a load test as tables, the same ones in the task log and in the report.

A column or a table without data is left out.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_pipeline.base.quantities import byte_size
from llm_pipeline.base.text_table import aligned
from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.outcome import QUANTILES, Latency, LoadTestOutcome, WindowSummary, deciding_windows

_MEASURES: tuple[tuple[str, str, str], ...] = (
    ("to the first token", "first_token", "first_token_milliseconds"),
    ("time per output token", "time_per_output_token", "time_per_output_token_milliseconds"),
    ("longest stall in an answer", "longest_stall", "longest_stall_milliseconds"),
    ("end to end", "end_to_end", "end_to_end_milliseconds"),
)
"""A latency in words, its field in a window, and its limit's in the service level."""

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: What it shows.
        head: Names of the columns.
        rows: As many cells each.
        notes: Sentences below it.
    """

    title: str
    head: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def is_number(self, column: int) -> bool:
        """Whether a column holds figures, to be aligned at the right."""
        return all(row[column].lstrip("+-[")[:1].isdigit() for row in self.rows if row[column])


def findings(outcome: LoadTestOutcome, policy: LoadTestPolicy) -> tuple[Table, ...]:
    """All tables for which there is data: windows, latencies, faults, server."""
    tables = (_windows(outcome), _latencies(outcome, policy), _faults(outcome.windows), _server(outcome.windows))
    return tuple(table for table in tables if table is not None)


def rates_in_words(outcome: LoadTestOutcome, policy: LoadTestPolicy) -> tuple[str, ...]:
    """The required and the reached rates, a sentence each."""
    level, rate = policy.service_level, outcome.target_rate_per_second
    within = "all of" if level.together else "each of"
    wanted = f"{100 * policy.attainment:g} % of requests within {within} {level.in_words}"
    reached = [f"the workload's rate is {per_second(rate)}"]
    if outcome.highest_rate_per_second is not None:
        reached.append(f"the search met the service level up to {per_second(outcome.highest_rate_per_second)}")
    elif outcome.rates:
        reached.append("the search met the service level at no rate")
    confirmed = outcome.confirmed_rate_per_second
    reached.append("no rate is confirmed" if confirmed is None else f"{per_second(confirmed)} is confirmed")
    sentences = [
        f"Service level: {wanted}; to be shown with {100 * policy.confidence:g} % confidence.",
        f"Rates: {'; '.join(reached)}.",
    ]
    if outcome.token_cost is not None:
        where = "the last rate that was tried" if confirmed is None else "the confirmed rate"
        sentences.append(f"A million output tokens cost {outcome.token_cost.in_words} at {where}.")
    return (*sentences, *outcome.notes)


def _table(title: str, columns: Mapping[str, Sequence[str]], notes: Iterable[str] = ()) -> Table | None:
    """A table of columns, without the empty ones; None without rows."""
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    return Table(title, tuple(kept), tuple(zip(*kept.values(), strict=True)), tuple(notes)) if kept else None


def _windows(outcome: LoadTestOutcome) -> Table | None:
    said = {point.window: str(point.verdict) for point in outcome.rates}
    windows = outcome.windows
    columns = {
        "window": [window.name for window in windows],
        "pace": [_pace(window) for window in windows],
        "requests": [f"{window.requests:,}" for window in windows],
        "failed": [f"{window.failed:,}" for window in windows],
        "good": [f"{100 * window.good_fraction:.1f} %" for window in windows],
        "TTFT p50/p99": [_pair(window.first_token) for window in windows],
        "TPOT p50/p99": [_pair(window.time_per_output_token) for window in windows],
        "e2e p99": [milliseconds(window.end_to_end.p99 if window.end_to_end else None) for window in windows],
        "stall max": [
            milliseconds((window.longest_stall and window.longest_stall.maximum) or None) for window in windows
        ],
        "tokens/s": [number(window.output_tokens_per_second) for window in windows],
        "verdict": ["void" if window.void else said.get(window.name, "") for window in windows],
    }
    notes = [f"{window.name} is void: {window.void.rstrip('.')}." for window in windows if window.void]
    return _table("Windows; latencies in ms from the scheduled arrival", columns, notes)


def _pace(window: WindowSummary) -> str:
    if window.offered_per_second is not None:
        return per_second(window.offered_per_second)
    return f"{window.concurrency} user{'s' if window.concurrency > 1 else ''}"


def _latencies(outcome: LoadTestOutcome, policy: LoadTestPolicy) -> Table | None:
    windows = deciding_windows(outcome)
    rows = [
        row
        for words, field, limit in _MEASURES
        if (
            row := _latency_row(
                words, [getattr(window, field) for window in windows], getattr(policy.service_level, limit)
            )
        )
    ]
    if not rows:
        return None
    requests = sum(window.requests for window in windows)
    what = "Confirmation" if windows[-1].phase == "confirmation" else "The workload's rate"
    several = f" in {len(windows)} windows" if len(windows) > 1 else ""
    title = f"{what}: latencies in ms of {requests:,} requests{several}"
    note = "Figures are of the middle window, and of the lowest and the highest." if several else ""
    head = ("latency", *QUANTILES.values(), "max", "limit")
    return _table(title, dict(zip(head, zip(*rows, strict=True), strict=True)), filter(None, (note,)))


def _latency_row(words: str, latencies: Sequence[Latency | None], allowed: float | None) -> Row | None:
    found = [latency for latency in latencies if latency]
    if not found or max(latency.maximum for latency in found) <= 0.0:
        return None
    quantiles = []
    for quantile in QUANTILES.values():
        values = sorted(getattr(latency, quantile) for latency in found)
        ends = f" [{milliseconds(values[0])}..{milliseconds(values[-1])}]" if len(values) > 1 else ""
        quantiles.append(f"{milliseconds(statistics.median(values))}{ends}")
    maximum = milliseconds(max(latency.maximum for latency in found))
    return (words, *quantiles, maximum, "" if allowed is None else f"{allowed:g}")


def _faults(windows: Sequence[WindowSummary]) -> Table | None:
    hit = {
        kind: [window for window in windows if window.faults.get(kind)]
        for kind in dict.fromkeys(kind for window in windows for kind in window.faults)
    }
    said = {
        kind: next((w.fault_detail for w in own if w.fault_detail and next(iter(w.faults)) == kind), "")
        for kind, own in hit.items()
    }
    columns = {
        "fault": list(hit),
        "requests": [f"{sum(window.faults[kind] for window in own):,}" for kind, own in hit.items()],
        "windows": [_names(own) for own in hit.values()],
        "message of the first": [quote(text) for text in said.values()],
    }
    return _table("Failed requests by kind", columns)


def _names(windows: Sequence[WindowSummary]) -> str:
    shown = [window.name for window in windows[:2]]
    return ", ".join(shown) + (f" and {len(windows) - 2} more" if len(windows) > len(shown) else "")


def _server(windows: Sequence[WindowSummary]) -> Table | None:
    told = [window for window in windows if any(value for name, value in window.server if name != "samples")]

    def of_each(field: str, shown: Callable[[Any], str] = str) -> list[str]:
        values = (getattr(window.server, field) for window in told)
        return ["" if value is None else shown(value) for value in values]

    columns = {
        "window": [window.name for window in told],
        "queue ms": of_each("queue_milliseconds", milliseconds),
        "active": of_each("active_requests"),
        "KV cache": of_each("kv_cache_fraction", percent),
        "GPU": of_each("gpu_utilization_fraction", percent),
        "GPU memory": of_each("gpu_memory_bytes", byte_size),
        "input tokens": of_each("input_tokens", "{:,}".format),
        "output tokens": of_each("output_tokens", "{:,}".format),
    }
    return _table("The server, by its own metrics", columns)


def _pair(latency: Latency | None) -> str:
    return f"{milliseconds(latency.p50)} / {milliseconds(latency.p99)}" if latency else ""


_THREE_DIGITS = 100.0
_LONGEST_QUOTE = 60


def milliseconds(value: float | None) -> str:
    """Three digits; empty without a value."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= _THREE_DIGITS else f"{value:#.3g}".rstrip(".")


def number(value: float) -> str:
    """Three digits, or all digits of a larger whole number, with commas."""
    return f"{value:,.0f}" if abs(value) >= _THREE_DIGITS else f"{value:.3g}"


def per_second(rate: float) -> str:
    """A rate."""
    return f"{number(rate)}/s"


def percent(fraction: float) -> str:
    """A fraction in whole percent."""
    return f"{100 * fraction:.0f} %"


def quote(text: str) -> str:
    """Text of a server on one line, cut."""
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST_QUOTE else f"{words[: _LONGEST_QUOTE - 3]}..."


WIDTH = 120


def format_load_test(outcome: LoadTestOutcome, policy: LoadTestPolicy) -> str:
    """All tables; starts with a line break."""
    blocks = ["\n".join(_wrapped(rates_in_words(outcome, policy)))]
    blocks += ["\n".join(_lines(table)) for table in findings(outcome, policy)]
    return "\n" + "\n\n".join(blocks)


def _lines(table: Table) -> Iterator[str]:
    """Aligned columns, figures at the right, below a title; long notes go on indented."""
    yield table.title
    numbers = [column for column in range(len(table.head)) if table.is_number(column)]
    yield from aligned([table.head, *table.rows], right=numbers)
    yield from _wrapped(table.notes)


def _wrapped(sentences: tuple[str, ...]) -> Iterator[str]:
    for sentence in sentences:
        yield from textwrap.wrap(" ".join(sentence.split()), WIDTH, subsequent_indent="  ")

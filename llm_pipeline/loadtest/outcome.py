"""The outcome of a load test, window by window, for the report and for comparisons.

An artifact of the load test holds `load_test.json`, a `LoadTestOutcome`, and beside it `<window name>.csv.gz`, the
`Records` of each window that is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Literal

from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen, Metric
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.statistics.intervals import bounds_of_mean

OUTCOME_FILE = "load_test.json"

Phase = Literal["floor", "ceiling", "target", "search", "confirmation"]


class Latency(Frozen):
    """One latency of the answered requests, in milliseconds."""

    p50: float
    p90: float
    p95: float
    p99: float
    maximum: float


class ServerUse(Frozen):
    """The server's metrics over a window; None where it has none.

    Attributes:
        queue_milliseconds: Mean time in Triton's queue.
        active_requests: Most requests accepted and not ended.
        kv_cache_fraction: Largest share of the KV cache in use.
        gpu_utilization_fraction: Mean over the window and the server's GPUs.
        gpu_memory_bytes: Most, all of the server's GPUs together.
        input_tokens: As counted by the server's metrics over the window.
        output_tokens: The same of generated tokens.
        acceptance_length: Tokens that a step with speculation gave a request, its own included.
        samples: How often the metrics were read.
    """

    queue_milliseconds: float | None = None
    active_requests: int | None = None
    kv_cache_fraction: float | None = None
    gpu_utilization_fraction: float | None = None
    gpu_memory_bytes: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    acceptance_length: float | None = None
    samples: int = 0


class WindowSummary(Frozen):
    """One window in figures.

    Attributes:
        name: Unique in the load test, e.g. `search-3`; the records are in `<name>.csv.gz`, if they are kept.
        requests: Requests of the window, without those whose user left as planned.
        failed: Those without a whole, plausible answer.
        faults: How many by kind, by the words of `Fault`.
        fault_detail: The first message of the most frequent kind.
        offered_per_second: Rate of the schedule; None in a closed loop.
        concurrency: Users of a closed loop; 0 in an open one.
        answered_per_second: Answered requests a second, until the last answer.
        good_fraction: Share of requests that met it.
        longest_wait_seconds: The longest time in which requests in a row were slower than the middle one.
        output_tokens_per_second: Tokens of answered requests a second.
        void: Why the window does not count; empty if it does.
    """

    name: str
    phase: Phase
    requests: int
    failed: int
    faults: dict[str, int]
    fault_detail: str = ""
    offered_per_second: float | None
    concurrency: int = 0
    answered_per_second: float
    good_fraction: float
    longest_wait_seconds: float
    output_tokens_per_second: float
    first_token: Latency | None
    time_per_output_token: Latency | None
    longest_stall: Latency | None
    end_to_end: Latency | None
    server: ServerUse = ServerUse()
    void: str = ""


class RatePoint(Frozen):
    """The result of one probe of the search."""

    rate_per_second: float
    good_fraction: float
    verdict: Verdict
    window: str


class TokenCost(Frozen):
    """What a million output tokens cost at the confirmed rate, with an interval (`token_cost`)."""

    estimate: float
    lower: float
    upper: float
    currency: str

    @property
    def in_words(self) -> str:
        """E.g. `0.312 USD (0.305 to 0.330)`."""
        return f"{self.estimate:.3g} {self.currency} ({self.lower:.3g} to {self.upper:.3g})"

    @property
    def metrics(self) -> dict[str, float | str]:
        """As metrics of a stage, which `of_metrics` reads."""
        return {f"token_cost_{name}": value for name, value in self.model_dump().items()}

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, Metric]) -> TokenCost | None:
        """From the metrics of a load test; None without a price."""
        if "token_cost_estimate" not in metrics:
            return None
        return cls.model_validate({name: metrics.get(f"token_cost_{name}") for name in cls.model_fields})


class LoadTestOutcome(Frozen):
    """A load test.

    Attributes:
        target_rate_per_second: The workload's rate.
        windows: In order.
        rates: The search's probes, by rising rate.
        highest_rate_per_second: Highest rate that met the service level in the search; None without a search, or when
            not even the lowest did.
        confirmed_rate_per_second: Rate of the confirmation that decided; None when none was reached.
        token_cost: Cost of a million output tokens at the confirmed rate; None without a price.
        notes: What a reader should know, a sentence each.
    """

    target_rate_per_second: float
    windows: tuple[WindowSummary, ...]
    rates: tuple[RatePoint, ...] = ()
    highest_rate_per_second: float | None = None
    confirmed_rate_per_second: float | None = None
    token_cost: TokenCost | None = None
    notes: tuple[str, ...] = ()
    judgement: Judgement


def write_outcome(directory: Path, outcome: LoadTestOutcome) -> None:
    """Write a load test's outcome to `directory`."""
    (directory / OUTCOME_FILE).write_text(outcome.model_dump_json(indent=1), encoding="utf-8")


def read_outcome(directory: Path) -> LoadTestOutcome:
    """Read a load test's outcome.

    Raises:
        IntegrityError: It is missing or not one of ours.
    """
    path = directory / OUTCOME_FILE
    return load_record(LoadTestOutcome, path, "no readable load test")


def deciding_windows(outcome: LoadTestOutcome) -> tuple[WindowSummary, ...]:
    """The windows behind the verdict: those of the last rate that was confirmed, or the target's; void ones left out.

    Windows of one confirmation are named `confirmation-<which>-<number>`.
    """
    usable = [window for window in outcome.windows if not window.void]
    confirmations = [window for window in usable if window.phase == "confirmation"]
    if confirmations:
        last = try_of(confirmations[-1])
        return tuple(window for window in confirmations if try_of(window) == last)
    return tuple(window for window in usable if window.phase == "target")


def acceptance_length(outcome: LoadTestOutcome) -> float | None:
    """Tokens that a step with speculation gave a request, by the windows behind the verdict; None without."""
    lengths = [window.server.acceptance_length for window in deciding_windows(outcome)]
    told = [length for length in lengths if length is not None]
    return statistics.fmean(told) if told else None


def try_of(window: WindowSummary) -> str:
    """Which try of a confirmation a window belongs to."""
    return "-".join(window.name.split("-")[:2])


QUANTILES = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99"}
"""The quantiles of a latency that are kept, and their names."""


def quantile_of(latencies: Iterable[Latency | None], quantile: float) -> float | None:
    """A quantile over several windows, in milliseconds: the middle one's."""
    found = [getattr(latency, QUANTILES[quantile]) for latency in latencies if latency]
    return statistics.median(found) if found else None


def token_cost(outcome: LoadTestOutcome, hour_price: float | None, currency: str) -> TokenCost | None:
    """What a million output tokens cost at the rate that was confirmed; None without a price, or where none was.

    For an hour's price p and the confirmation's windows with a mean of m tokens a second the cost is 1e6 p / (3600 m).
    Its interval has two sources. Windows differ: the bounds of m are Student's, at 95 % on both sides together. And the
    limit lies between the rate that held and the next one that did not, which is as far above as the search was coarse
    (`search.resolution`): the lower bound of the cost is that of a server that holds almost that one. Where the search
    ended before a rate failed (`search.maximum_multiple`), the limit may be all that as many users as the engine holds
    got.
    """
    paces = [window.output_tokens_per_second for window in deciding_windows(outcome)]
    if hour_price is None or outcome.confirmed_rate_per_second is None or not min(paces, default=0.0):
        return None
    pace, low, high = bounds_of_mean(paces, 0.975)
    price = 1e6 * hour_price / 3600
    low = max(low, pace / 2)  # a bound below nothing would say nothing either
    return TokenCost(
        estimate=price / pace, lower=price / (high * _left_open(outcome)), upper=price / low, currency=currency
    )


def _left_open(outcome: LoadTestOutcome) -> float:
    """The lowest rate that did not hold, by the highest that did; where none failed, what the engine's users got."""
    held = mean(window.offered_per_second or 0.0 for window in deciding_windows(outcome))
    tried: dict[str, list[float]] = {}
    for window in outcome.windows:
        if window.phase == "confirmation":
            tried.setdefault(try_of(window), []).append(window.offered_per_second or 0.0)
    if held and len(tried) > 1:  # each is lower than the one before, and the last was confirmed
        return max(1.0, mean([*tried.values()][-2]) / held)
    highest = outcome.highest_rate_per_second
    missed = [point.rate_per_second for point in outcome.rates if point.verdict is not Verdict.GO]
    if not highest:
        return 1.0
    above = [rate for rate in missed if rate > highest]
    ceiling = (window.answered_per_second for window in outcome.windows if window.phase == "ceiling")
    return min(above) / highest if above else max(1.0, max(ceiling, default=0.0) / highest)

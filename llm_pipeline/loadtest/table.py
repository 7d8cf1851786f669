"""A load test as text for a task's log."""

from __future__ import annotations

from llm_pipeline.config.policy import LoadTestPolicy
from llm_pipeline.loadtest.summary import Latency, LoadTestSummary, Quantile
from llm_pipeline.verdict import Evidence, Judgement

_HEAD = ("latency from the scheduled arrival, ms", "p50", "p90", "p95", "p99", "max", "limit")


def format_load_test(summary: LoadTestSummary, judgement: Judgement, policy: LoadTestPolicy) -> str:
    """Latencies with 95 % bounds, rates, and each fact's verdict; starts with a line break."""
    level = policy.service_level
    rows = [
        _HEAD,
        _latency_row("to the first token", summary.first_token, f"{level.first_token_milliseconds:g}"),
        _latency_row("to the end of the answer", summary.end_to_end, f"{level.end_to_end_milliseconds:g}"),
        _latency_row("longest silence within an answer", summary.longest_gap, ""),
    ]
    rates = (
        f"{summary.requests} requests, {summary.failed} failed; offered {summary.offered_per_second:.1f}/s, "
        f"answered {summary.answered_per_second:.1f}/s, good {summary.good_per_second:.1f}/s, "
        f"{summary.output_tokens_per_second:.0f} output tokens/s; "
        f"client's own delay p99 {summary.client_lag_p99_milliseconds:.1f} ms"
    )
    facts = [("verdict", "fact", "measured", "bounds", "limit", "n"), *(_fact_row(fact) for fact in judgement.evidence)]
    return "\n" + "\n".join([*_aligned(rows), rates, "", *_aligned(facts), f"{judgement.verdict}: {judgement.summary}"])


def _latency_row(name: str, latency: Latency | None, limit: str) -> tuple[str, ...]:
    if latency is None:
        return (name, "-", "-", "-", "-", "-", limit)
    return (name, *(_quantile(q) for q in latency.quantiles), f"{latency.maximum_milliseconds:.1f}", limit)


def _quantile(quantile: Quantile) -> str:
    lower = "" if quantile.lower is None else f"{quantile.lower:.1f}"
    upper = "" if quantile.upper is None else f"{quantile.upper:.1f}"
    return f"{quantile.milliseconds:.1f} [{lower}..{upper}]"


def _fact_row(fact: Evidence) -> tuple[str, ...]:
    measured = "-" if fact.measured is None else f"{fact.measured:.4g} {fact.unit}"
    bounds = " .. ".join("" if bound is None else f"{bound:.4g}" for bound in (fact.lower, fact.upper))
    limit = "" if fact.limit is None else f"{fact.limit:.4g}"
    return (str(fact.verdict), fact.name, measured, bounds.strip(), limit, str(fact.samples))


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

"""The part of the plan's table that says what each step of the canary can catch, and what parity would take."""

from __future__ import annotations

from llm_pipeline.planning.canary_steps import (
    KIND_SHARE,
    POWER,
    WAVERING,
    CanaryPower,
    Caught,
    Parity,
    StepPower,
    duration,
)
from llm_pipeline.planning.cost_table import aligned


def canary_lines(power: CanaryPower) -> list[str]:
    """A row for each step and bake; nothing for a canary that takes all traffic at once."""
    if not power.steps:
        return []
    header = (
        "step",
        "bake",
        "requests",
        "errors caught",
        "slow caught",
        "outage ends",
        "errors no worse",
        "latency no worse",
    )
    rows = [row for step in power.steps for row in _rows(step, power)]
    title = (
        f"canary at {power.rate_per_second:g} requests/s (smallest rise that the comparison catches with a power of "
        f"{POWER:g}, if {_percent(power.error_share)} of stable's requests fail and {_percent(power.slow_share)} are "
        "slow; requests that prove it to be no worse, in half of all cases)"
    )
    return [title, *aligned([header, *rows], 1), *_assumed(power)]


def _assumed(power: CanaryPower) -> list[str]:
    """What the table cannot show: rare kinds of requests, servers that waver by themselves, and what answers say."""
    kinds = ", ".join(
        f"{_rise(step.kind_error_ratio, power.error_share)} at {step.percent:g} %" for step in power.steps
    )
    rare = (
        f"  errors caught in a kind of requests that is {_percent(KIND_SHARE)} of the traffic (streamed answers, say), "
        f"within the longest bake: {kinds}"
    )
    blocks = (
        f"  latencies are counted in blocks of {duration(power.block_seconds)}, of which at least four are needed, "
        "as far as stable does not vary as much by itself: that is learned before the first step and since, and the "
        "candidate is assumed to vary as stable does. Where the odds of a slow request vary by "
        f"{_percent(WAVERING)} for longer than a step, only a rise of the odds by x {power.wavering_ratio:.2g} is "
        "told from chance"
    )
    contents = (
        "  answers are compared by length, finish reason, repetition and characters, those over gRPC by length of time "
        "only; that fluent answers are wrong, or loops longer than 500 characters, only `shadow:` sees"
    )
    return [rare, blocks, contents]


def _rows(step: StepPower, power: CanaryPower) -> list[tuple[str, ...]]:
    proof = (duration(step.outage_seconds), _parity(step.errors), _parity(step.slow))
    return [
        (f"{step.percent:g} %", *_caught(step.shortest, power), *proof),
        ("", *_caught(step.longest, power), "", "", ""),
    ]


def _caught(caught: Caught, power: CanaryPower) -> tuple[str, ...]:
    return (
        duration(caught.seconds),
        f"{caught.candidate_requests:,.3g}" if caught.candidate_requests < 100 else f"{caught.candidate_requests:,.0f}",  # noqa: PLR2004 - three digits
        _rise(caught.error_ratio, power.error_share),
        _rise(caught.slow_ratio, power.slow_share),
    )


def _rise(ratio: float | None, share: float) -> str:
    return "none" if ratio is None else f"x {ratio:.3g} ({_percent(ratio * share)})"


def _parity(parity: Parity | None) -> str:
    return "never" if parity is None else f"{parity.requests:,.0f}, {duration(parity.seconds)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1.0 else "100 %"

"""A canary's step in numbers: one sentence for the judgement, one table for the log of the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from llm_pipeline.canary.analysis import AnalysisState, MetricState, StepState
from llm_pipeline.canary.evidence import SPLIT_ALPHA, regression_limit, slow_limit
from llm_pipeline.canary.observations import ArmPoint, ObservedRequest, arm_point
from llm_pipeline.canary.router import SlotName, other_slot
from llm_pipeline.canary.slow_limits import Thresholds
from llm_pipeline.canary.windows import ArmCounts
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.verdict import Judgement

_NOTHING = "-"


@dataclass(frozen=True)
class StepArms:
    """Both arms' latencies over one step, or as much of it as the newest part of the access log holds.

    Attributes:
        slot: The candidate's slot.
    """

    slot: SlotName
    candidate: ArmPoint
    stable: ArmPoint

    @classmethod
    def of(cls, requests: Iterable[ObservedRequest], slot: SlotName, since: float) -> Self:
        """The arms over requests that started at or after `since`."""
        current = [request for request in requests if request.started_at >= since]
        return cls(
            slot=slot,
            candidate=arm_point([request for request in current if request.arm == slot]),
            stable=arm_point([request for request in current if request.arm != slot]),
        )


def step_in_numbers(step: StepState, arms: StepArms) -> str:
    """`128 candidate and 371 stable requests, errors 0 and 0, p95 first byte 24 and 22 ms`.

    Without streamed answers it gives the time to the last byte; at 100 % there is no stable arm to name.
    """
    candidate, stable = step.candidate, step.stable
    streamed = arms.candidate.first_token_p95 is not None or arms.stable.first_token_p95 is not None
    what = "first byte" if streamed else "last byte"
    p95 = [arm.first_token_p95 if streamed else arm.end_to_end_p95 for arm in (arms.candidate, arms.stable)]
    if step.share == 1.0 and not stable.requests:
        return f"{candidate.requests} candidate requests, errors {candidate.errors}, p95 {what} {_number(p95[0])} ms"
    return (
        f"{candidate.requests} candidate and {stable.requests} stable requests, "
        f"errors {candidate.errors} and {stable.errors}, p95 {what} {_number(p95[0])} and {_number(p95[1])} ms"
    )


def format_step(
    state: AnalysisState,
    step: StepState,
    arms: StepArms,
    *,
    judgement: Judgement,
    policy: CanaryPolicy,
    seconds: float,
) -> str:
    """Both arms over the step, the split, the tests over the whole canary, the verdict; starts with a line break."""
    slot = arms.slot
    head = (f"step {step.percent}, {seconds:.0f} s", f"candidate ({slot})", f"stable ({other_slot(slot)})")
    tests = [
        ("whole canary", "candidate", "stable", "e-value", "regressed at", "parity e-value", "proven at"),
        *(_metric_row(metric, state, policy) for metric in state.metrics),
    ]
    lines = [
        *_aligned([head, *_arm_rows(step, arms, state.thresholds)]),
        _split_line(step),
        "",
        *_aligned(tests),
        f"{judgement.verdict}: {judgement.summary}",
    ]
    return "\n" + "\n".join(lines)


def _arm_rows(step: StepState, arms: StepArms, thresholds: Thresholds) -> list[tuple[str, ...]]:
    counts = (step.candidate, step.stable)
    points = (arms.candidate, arms.stable)
    rows = [
        ("requests", *(str(arm.requests) for arm in counts)),
        ("errors", *(_share(arm.errors, arm.requests) for arm in counts)),
        ("failed for users", *(_share(arm.lost, arm.requests) for arm in counts)),
        ("first byte p50 / p95, ms", *(_pair(point.first_token_p50, point.first_token_p95) for point in points)),
        ("last byte p50 / p95, ms", *(_pair(point.end_to_end_p50, point.end_to_end_p95) for point in points)),
    ]
    if (limit := thresholds.first_token_milliseconds) is not None:
        rows.append(
            (f"first byte beyond {limit:.0f} ms", *(_share(arm.slow_streams[0], arm.streams) for arm in counts))
        )
    rows.append((f"last byte beyond {thresholds.end_to_end_milliseconds:.0f} ms", *map(_slow_share, counts)))
    return rows


def _slow_share(counts: ArmCounts) -> str:
    return _share(counts.slow[0], counts.answered)


def _split_line(step: StepState) -> str:
    split = step.split
    measured = _NOTHING if split.measured is None else f"{split.measured * 100:.1f} %"
    return (
        f"split: {measured} of {split.total} requests measured, {step.percent} intended; "
        f"e-value {split.largest:.3g}, wrong at {1 / SPLIT_ALPHA:.0f}"
    )


def _metric_row(metric: MetricState, state: AnalysisState, policy: CanaryPolicy) -> tuple[str, ...]:
    at = metric.telling
    limit = metric.limits[at]
    return (
        metric.name + slow_limit(metric.name, state.thresholds, at),
        _share(limit.candidate_events, metric.candidate_requests),
        _share(limit.stable_events, metric.stable_requests),
        f"{metric.largest:.3g}",
        f"{regression_limit(state, policy):.0f}",
        f"{metric.non_inferior.largest:.3g}",
        f"{1 / policy.alpha:.0f}",
    )


def _share(events: int, total: int) -> str:
    return f"{events}/{total} ({events / total * 100:.1f} %)" if total else _NOTHING


def _pair(first: float | None, second: float | None) -> str:
    return f"{_number(first)} / {_number(second)}"


def _number(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0f}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

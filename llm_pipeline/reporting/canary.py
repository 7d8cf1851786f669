"""Reading what the canary measured into the shapes that the plots draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.canary.events import CanaryEvent
from llm_pipeline.canary.observations import ArmPoint, TimelinePoint
from llm_pipeline.canary.timeline import read_summary, read_timeline
from llm_pipeline.reporting.model import ArmSample, CanaryMark, CanaryMoment, CanarySample, CanaryStudy
from llm_pipeline.reporting.production import find_rollback

MOST_SAMPLES = 240
"""Intervals of a canary that the report keeps; more cannot be told apart in a plot."""


def read_canary(directories: Sequence[Path], target: str) -> CanaryStudy:
    """The canary of one target: each step's artifact holds the canary so far, and that step's own summary.

    Args:
        directories: Of the steps' artifacts, the latest last.
        target: The target's name.

    Raises:
        IntegrityError: A timeline is missing or damaged.
    """
    summary, points = read_timeline(directories[-1])
    summaries = [*map(read_summary, directories[:-1]), summary]
    steps = {one.step.percent: one.step for one in summaries if one.step and one.began_at == summary.began_at}
    marks = [CanaryMark(seconds=mark.at_seconds, label=mark.label) for mark in summary.marks]
    short = tuple(mark.model_copy(update={"label": mark.label.partition(":")[0]}) for mark in marks)
    return CanaryStudy(
        target=target,
        samples=tuple(_thinned(points)),
        marks=short,
        rollback=find_rollback(marks),
        evidence=summary.evidence,
        moments=tuple(_moment(event, summary.began_at) for event in summary.events),
        steps=tuple(steps[percent] for percent in sorted(steps)),
        shadow=summary.shadow,
    )


def _moment(event: CanaryEvent, began_at: float) -> CanaryMoment:
    return CanaryMoment(
        seconds=event.at - began_at,
        at=datetime.fromtimestamp(event.at, UTC),
        kind=event.kind.value,
        percent=event.percent,
        summary=event.summary,
        by=event.by,
        verdict=event.verdict,
    )


def _thinned(points: Sequence[TimelinePoint]) -> Iterator[CanarySample]:
    """At most `MOST_SAMPLES` intervals: counts add up, latencies are averaged by requests."""
    step = max(1, math.ceil(len(points) / MOST_SAMPLES))
    length = points[1].at_seconds - points[0].at_seconds if len(points) > 1 else 1.0
    for first in range(0, len(points), step):
        group = points[first : first + step]
        yield CanarySample(
            seconds=group[0].at_seconds,
            length_seconds=len(group) * length,
            percent=100 * group[-1].intended_share,
            stable=_arm([point.stable for point in group]),
            canary=_arm([point.candidate for point in group]),
        )


def _arm(points: Sequence[ArmPoint]) -> ArmSample:
    return ArmSample(
        requests=sum(point.requests for point in points),
        errors=sum(point.errors for point in points),
        lost=sum(point.lost for point in points),
        first_token_p50=_average((point.first_token_p50, point.requests) for point in points),
        first_token_p95=_average((point.first_token_p95, point.requests) for point in points),
        end_to_end_p50=_average((point.end_to_end_p50, point.requests) for point in points),
        end_to_end_p95=_average((point.end_to_end_p95, point.requests) for point in points),
    )


def _average(weighted: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None

"""What a canary leaves for people: its timeline and its evidence over time, as an artifact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.access_log import AccessLog, ObservedRequest
from llm_pipeline.canary.analysis import SPLIT_ALPHA, Look, regressed_at
from llm_pipeline.canary.metrics import quantile
from llm_pipeline.canary.record import CanaryEvent, CanaryRecord, EventKind


class ArmPoint(Frozen):
    """One arm in one interval of the timeline; latencies in milliseconds, None without requests."""

    requests: int
    errors: int
    lost: int = 0
    first_token_p50: float | None = None
    first_token_p95: float | None = None
    end_to_end_p50: float | None = None
    end_to_end_p95: float | None = None


def arm_point(requests: Sequence[ObservedRequest]) -> ArmPoint:
    """One arm's requests as a point of the timeline; first tokens are those of streamed answers."""
    judged = [request for request in requests if not request.by_status_only]
    answered = [request for request in judged if not request.error and not request.cancelled]
    first = [r.first_byte_milliseconds for r in answered if r.streaming and r.first_byte_milliseconds is not None]
    total = [request.total_milliseconds for request in answered]
    return ArmPoint(
        requests=len(requests),
        errors=sum(request.error for request in requests),
        lost=sum(request.lost for request in requests),
        first_token_p50=quantile(first, 0.5),
        first_token_p95=quantile(first, 0.95),
        end_to_end_p50=quantile(total, 0.5),
        end_to_end_p95=quantile(total, 0.95),
    )


SUMMARY_FILE = "canary.json"

MOST_BYTES = 32 * 1024 * 1024
"""Of the access log in one timeline, about 45,000 lines: the work at a step's end does not grow with the canary."""

MOST_INTERVALS = 240
"""A plot shows no more: those of a canary that takes longer than so many seconds are longer than one."""


class TimelinePoint(Frozen):
    """Both arms in one interval.

    Attributes:
        at_seconds: Start of the interval, seconds since the canary began.
        intended_share: Share of traffic that the candidate should have had at the interval's end.
    """

    at_seconds: float
    length_seconds: float = 1.0
    intended_share: float
    candidate: ArmPoint
    stable: ArmPoint

    @property
    def percent(self) -> float:
        """The intended share in percent."""
        return 100 * self.intended_share


class EvidenceSeries(Frozen):
    """The e-values of a canary over its time, and what they are compared with.

    Attributes:
        metrics: Names, in the order of each look's values.
        regressed_at: The e-value from which the candidate has regressed.
        split_wrong_at: The e-value from which the router splits the traffic wrongly.
        looks: Oldest first; `at` counts from the canary's start.
    """

    metrics: tuple[str, ...]
    regressed_at: float
    split_wrong_at: float
    looks: tuple[Look, ...]


class CanarySummary(Frozen):
    """What the report says of a canary.

    Attributes:
        began_at: Seconds since 1970.
        events: What happened in this attempt, oldest first.
        evidence: The e-values over time; None before the first look.
        points: Both arms over time; none without a log of single requests.
    """

    began_at: float
    events: tuple[CanaryEvent, ...] = ()
    evidence: EvidenceSeries | None = None
    points: tuple[TimelinePoint, ...] = ()

    @property
    def rollback(self) -> CanaryEvent | None:
        """The event that began its rollback, with the share in force and the reason; None where there is none."""
        kinds = EventKind.ROLLING_BACK, EventKind.ROLLED_BACK
        return next((event for event in self.events if event.kind in kinds), None)


def write_timeline(directory: Path, record: CanaryRecord, access_log: AccessLog | None) -> None:
    """Write the canary so far to `directory`: its record, and the access log since its beginning, if there is one.

    Of a long log only the newest part is read (`MOST_BYTES`): each step writes a timeline of its own.
    """
    requests, began_at = access_log.recent(record.began_at, MOST_BYTES) if access_log else [], record.began_at
    events = [event for event in record.events if event.at >= began_at]
    shares = [(event.at, share) for event in events if (share := _share_after(event, record)) is not None]
    lasted = max((request.started_at for request in requests), default=began_at) - began_at
    seconds = float(max(1, math.ceil(lasted / MOST_INTERVALS)))
    bins: dict[int, tuple[list[ObservedRequest], list[ObservedRequest]]] = {}
    for request in requests:
        index = math.floor((request.started_at - began_at) / seconds)
        bins.setdefault(index, ([], []))[request.arm != record.candidate].append(request)
    points = []
    for index in range(max(bins, default=-1) + 1):
        mine, others = bins.get(index, ([], []))
        end = began_at + (index + 1) * seconds
        point = TimelinePoint(
            at_seconds=index * seconds,
            length_seconds=seconds,
            intended_share=next((share for since, share in reversed(shares) if since <= end), 0.0),
            candidate=arm_point(mine),
            stable=arm_point(others),
        )
        points.append(point)
    evidence = None
    if record.analysis is not None and record.looks:
        evidence = EvidenceSeries(
            metrics=tuple(metric.name for metric in record.analysis.metrics),
            regressed_at=regressed_at(record.policy),
            split_wrong_at=1.0 / SPLIT_ALPHA,
            looks=tuple(look.model_copy(update={"at": look.at - began_at}) for look in record.looks),
        )
    summary = CanarySummary(began_at=began_at, events=tuple(events), evidence=evidence, points=tuple(points))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SUMMARY_FILE).write_text(summary.model_dump_json(indent=1) + "\n")


def read_timeline(directory: Path) -> CanarySummary:
    """Read what `write_timeline` wrote.

    Raises:
        IntegrityError: It is missing or damaged.
    """
    return load_record(CanarySummary, directory / SUMMARY_FILE, "not a canary's summary")


def _share_after(event: CanaryEvent, record: CanaryRecord) -> float | None:
    """The candidate's share of the traffic from an event on; None where it stays as it was."""
    if event.kind is EventKind.SHIFTED:
        return record.policy.share_at(event.percent)
    if event.kind is EventKind.PROMOTED and record.stable is None:
        return 1.0
    return 0.0 if event.kind in (EventKind.STARTED, EventKind.ROLLED_BACK) else None

"""What a canary leaves for people: its step in numbers, and its timeline as an artifact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from llm_pipeline.base.errors import IntegrityError, unless_io
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import Frozen
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.access_log import AccessLog, ObservedRequest
from llm_pipeline.canary.analysis import Look, StepState, regressed_at
from llm_pipeline.canary.evidence import SPLIT_ALPHA, beyond_in_words, metric_compared, split_ratio
from llm_pipeline.canary.metrics import quantile
from llm_pipeline.canary.record import CanaryEvent, CanaryRecord, EventKind
from llm_pipeline.canary.router import SlotName


class MetricSummary(Frozen):
    """One metric over the whole canary, at the end of a step.

    Attributes:
        name: The metric, with the limit of the strongest evidence: `slow first token beyond 50 ms (p90)`.
        candidate_events: How many of its requests were events there.
        candidate_requests: Those that the metric could judge.
        e_value: That the candidate is worse than tolerated; the largest so far.
        regressed_at: The e-value from which it is.
    """

    name: str
    verdict: Verdict
    candidate_events: int
    candidate_requests: int
    stable_events: int
    stable_requests: int
    e_value: float
    regressed_at: float


class StepSummary(Frozen):
    """A step as it was judged last.

    Attributes:
        percent: The candidate's intended share.
        verdict: The judgement's; None before the first look.
        summary: Its sentence.
        watched_seconds: How long it was watched.
        measured_percent: The candidate's share of the step's requests; None without traffic.
        split_e_value: That the router splits the traffic wrongly; the largest of the step.
        split_wrong_at: The e-value from which it does.
        left_out: What was not compared, and why.
    """

    percent: float
    verdict: Verdict | None
    summary: str
    watched_seconds: float
    candidate_requests: int
    stable_requests: int
    measured_percent: float | None
    split_verdict: Verdict
    split_e_value: float
    split_wrong_at: float
    metrics: tuple[MetricSummary, ...]
    left_out: tuple[str, ...] = ()


def summarise_step(record: CanaryRecord) -> StepSummary | None:
    """The step in force of a canary; None before the first."""
    state = record.analysis
    if state is None or state.step is None:
        return None
    split, metrics = state.step.split, []
    for metric in state.metrics:
        at, mine, theirs = metric.telling, metric.total.candidate, metric.total.stable
        metrics.append(
            MetricSummary(
                name=metric.name + beyond_in_words(metric, state.thresholds, at),
                verdict=metric_compared(metric, state, record.policy).verdict,
                candidate_events=mine.events[at],
                candidate_requests=mine.requests,
                stable_events=theirs.events[at],
                stable_requests=theirs.requests,
                e_value=metric.largest,
                regressed_at=regressed_at(record.policy),
            )
        )
    return StepSummary(
        percent=record.step_percent,
        verdict=record.judgement.verdict if record.judgement else None,
        summary=record.judgement.summary if record.judgement else "",
        watched_seconds=record.watched_seconds,
        candidate_requests=split.candidate,
        stable_requests=split.total - split.candidate,
        measured_percent=None if split.measured is None else 100.0 * split.measured,
        split_verdict=split_ratio(state.step).verdict,
        split_e_value=split.largest,
        split_wrong_at=1.0 / SPLIT_ALPHA,
        metrics=tuple(metrics),
        left_out=tuple(state.thresholds.left_out),
    )


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


def arms_since(requests: Iterable[ObservedRequest], slot: SlotName, since: float) -> tuple[ArmPoint, ArmPoint]:
    """The candidate's and stable's answers, of requests that started at or after `since`."""
    current = [request for request in requests if request.started_at >= since]
    mine = [request for request in current if request.arm == slot]
    return arm_point(mine), arm_point([request for request in current if request.arm != slot])


def step_in_numbers(step: StepState, arms: tuple[ArmPoint, ArmPoint]) -> str:
    """`128 candidate and 371 stable requests, failures 0 and 0, p95 first byte 24 and 22 ms`.

    Without streamed answers it gives the time to the last byte; at 100 % there is no stable arm to name.
    """
    candidate, stable = step.candidate, step.stable
    streamed = any(arm.first_token_p95 is not None for arm in arms)
    what = "first byte" if streamed else "last byte"
    p95 = [arm.first_token_p95 if streamed else arm.end_to_end_p95 for arm in arms]
    mine, theirs = ("-" if value is None else f"{value:.0f}" for value in p95)
    if step.share == 1.0 and not stable.requests:
        return f"{candidate.requests} candidate requests, failures {candidate.failed}, p95 {what} {mine} ms"
    return (
        f"{candidate.requests} candidate and {stable.requests} stable requests, "
        f"failures {candidate.failed} and {stable.failed}, p95 {what} {mine} and {theirs} ms"
    )


TIMELINE_FILE = "timeline.jsonl"
SUMMARY_FILE = "canary.json"

MOST_BYTES = 32 * 1024 * 1024
"""Of the access log in one timeline, about 45,000 lines: the work at a step's end does not grow with the canary."""

MOST_INTERVALS = 7200
"""Of one second each for two hours; those of a longer canary are longer."""


class TimelinePoint(Frozen):
    """Both arms in one interval.

    Attributes:
        at_seconds: Start of the interval, seconds since the canary began.
        length_seconds: Its length; timelines of before this field do not say theirs.
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


def timeline(
    requests: Iterable[ObservedRequest],
    shares: Sequence[tuple[float, float]],
    *,
    candidate: SlotName,
    began_at: float,
    interval_seconds: float = 1.0,
) -> list[TimelinePoint]:
    """Both arms over time.

    Args:
        requests: What was observed.
        shares: (time, the candidate's share from then on), rising in time.
        candidate: The slot on trial.
        began_at: Start of the timeline, seconds since 1970.
        interval_seconds: Length of an interval.
    """
    bins: dict[int, tuple[list[ObservedRequest], list[ObservedRequest]]] = {}
    for request in requests:
        index = math.floor((request.started_at - began_at) / interval_seconds)
        if index >= 0:
            bins.setdefault(index, ([], []))[request.arm != candidate].append(request)
    points = []
    for index in range(max(bins, default=-1) + 1):
        mine, others = bins.get(index, ([], []))
        end = began_at + (index + 1) * interval_seconds
        share = next((share for since, share in reversed(shares) if since <= end), 0.0)
        point = TimelinePoint(
            at_seconds=index * interval_seconds,
            length_seconds=interval_seconds,
            intended_share=share,
            candidate=arm_point(mine),
            stable=arm_point(others),
        )
        points.append(point)
    return points


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
        step: The step in force; None before the first.
    """

    release_id: str
    target: str
    began_at: float
    events: tuple[CanaryEvent, ...] = ()
    evidence: EvidenceSeries | None = None
    step: StepSummary | None = None


def write_timeline(directory: Path, record: CanaryRecord, access_log: AccessLog | None) -> list[TimelinePoint]:
    """Write the canary so far to `directory`: its record, and the access log since its beginning, if there is one.

    Of a long log only the newest part is read (`MOST_BYTES`): each step writes a timeline of its own.
    """
    requests, began_at = access_log.recent(record.began_at, MOST_BYTES) if access_log else [], record.began_at
    events = [event for event in record.events if event.at >= began_at]
    shares = [(event.at, share) for event in events if (share := _share_after(event, record)) is not None]
    lasted = max((request.started_at for request in requests), default=began_at) - began_at
    seconds = float(max(1, math.ceil(lasted / MOST_INTERVALS)))
    points = timeline(requests, shares, candidate=record.candidate, began_at=began_at, interval_seconds=seconds)
    evidence = None
    if record.analysis is not None and record.looks:
        evidence = EvidenceSeries(
            metrics=tuple(metric.name for metric in record.analysis.metrics),
            regressed_at=regressed_at(record.policy),
            split_wrong_at=1.0 / SPLIT_ALPHA,
            looks=tuple(look.model_copy(update={"at": look.at - began_at}) for look in record.looks),
        )
    summary = CanarySummary(
        release_id=record.release_id,
        target=record.target,
        began_at=record.began_at,
        events=tuple(events),
        evidence=evidence,
        step=summarise_step(record),
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / SUMMARY_FILE).write_text(summary.model_dump_json(indent=1) + "\n")
    with (directory / TIMELINE_FILE).open("w") as stream:
        stream.writelines(point.model_dump_json() + "\n" for point in points)
    return points


def read_timeline(directory: Path) -> tuple[CanarySummary, list[TimelinePoint]]:
    """Read what `write_timeline` wrote.

    Raises:
        IntegrityError: A file is missing or damaged.
    """
    summary = read_summary(directory)
    try:
        with (directory / TIMELINE_FILE).open() as stream:
            return summary, [TimelinePoint.model_validate_json(line) for line in stream]
    except (OSError, ValidationError) as error:
        raise unless_io(error, IntegrityError(f"not a canary timeline: {error}", where=str(directory))) from error


def read_summary(directory: Path) -> CanarySummary:
    """Read the summary alone.

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

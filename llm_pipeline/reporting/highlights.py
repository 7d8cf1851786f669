"""The few figures that go on top of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from llm_pipeline.base.quantities import byte_size, duration, measure, points
from llm_pipeline.canary.record import EventKind
from llm_pipeline.canary.timeline import CanarySummary
from llm_pipeline.inspection.release_summaries import Figure
from llm_pipeline.loadtest.outcome import WindowSummary, acceptance_length, deciding_windows, quantile_of
from llm_pipeline.reporting.model import AccuracyStudy, CandidateRow, LoadStudy, Trial


def highlights(
    trials: Sequence[Trial],
    accuracy: Sequence[AccuracyStudy],
    loads: Sequence[LoadStudy],
    canaries: Mapping[str, CanarySummary],
    *,
    candidates: Sequence[CandidateRow] = (),
) -> tuple[Figure, ...]:
    """Size and accuracy of each chosen recipe, then each load test, what was chosen by cost, and each canary."""
    found: list[Figure] = []
    for chosen in (trial for trial in trials if trial.chosen_on):
        if chosen.bytes:
            note = f"{100 * chosen.size_ratio:.0f} % of the baseline's" if chosen.size_ratio else ""
            found.append(Figure(label=f"Size, {chosen.name}", value=byte_size(chosen.bytes), note=note))
        found += _accuracy(chosen, accuracy)
    return (
        *found,
        *(figure for load in loads for figure in _load(load)),
        *(figure for row in candidates if row.chosen for figure in _chosen(row)),
        *(_canary(target, canary) for target, canary in canaries.items() if canary.points),
    )


def _accuracy(chosen: Trial, accuracy: Sequence[AccuracyStudy]) -> Iterator[Figure]:
    for study in accuracy:
        loss = study.comparison.pooled.loss
        if study.name == chosen.name and loss:
            confidence = f"{100 * study.comparison.confidence:g} %"
            note = f"at most {points(loss.upper)} at {confidence}, {points(study.margin)} allowed"
            yield Figure(label=f"Accuracy lost, {chosen.name}", value=f"{points(loss.estimate)} points", note=note)


def _load(load: LoadStudy) -> Iterator[Figure]:
    """What the verdict is about, what speculation brought, and the cost."""
    outcome, rate = load.outcome, load.outcome.confirmed_rate_per_second
    yield from load_figures(load)
    if length := acceptance_length(outcome):
        note = "its own and what speculation guessed rightly"
        yield Figure(label=f"Tokens a step, {load.target}", value=f"{length:.2f}", note=note)
    if outcome.token_cost is not None and rate is not None:
        cost = outcome.token_cost
        note = f"a million output tokens at the confirmed rate: {cost.lower:.3g} to {cost.upper:.3g}"
        yield Figure(label=f"Cost, {load.target}", value=f"{cost.estimate:.3g} {cost.currency}", note=note)


def _chosen(row: CandidateRow) -> Iterator[Figure]:
    """What a release by cost measured of what it released."""
    if row.tokens_per_second:
        yield Figure(label=f"Tokens, {row.target}", value=f"{row.tokens_per_second:,.0f} tokens/s", note=row.name)
    if row.gpu_memory_bytes:
        yield Figure(label=f"GPU memory, {row.target}", value=byte_size(row.gpu_memory_bytes))


def load_figures(load: LoadStudy) -> Iterator[Figure]:
    """The confirmed rate, and what became of the requests at it."""
    outcome, windows = load.outcome, deciding_windows(load.outcome)
    rate = outcome.confirmed_rate_per_second
    if windows:
        requests, failed = (sum(getattr(window, name) for window in windows) for name in ("requests", "failed"))
        good = sum(window.good_fraction * window.requests for window in windows) / requests
        tokens = sum(window.output_tokens_per_second for window in windows) / len(windows)
        counts = f"{100 * good:.1f} % good, {failed:,} of {requests:,} failed"
        notes = (counts, *_slow(load, windows), f"{tokens:,.0f} tokens/s")
        value = "none confirmed" if rate is None else f"{rate:.3g}/s"
        yield Figure(label=f"Requests under load, {load.target}", value=value, note="; ".join(notes))


def _slow(load: LoadStudy, windows: Sequence[WindowSummary]) -> Iterator[str]:
    """The p95 to the first token; to the end where no answer was streamed."""
    for name, field in (("first token", "first_token"), ("end to end", "end_to_end")):
        found = quantile_of((getattr(window, field) for window in windows), 0.95)
        if found is not None:
            limit = load.limit(name)
            allowed = "" if limit is None else f", limit {measure(limit, 'ms')}"
            yield f"{name} p95 {measure(found, 'ms')}{allowed}"
            return


def _canary(target: str, canary: CanarySummary) -> Figure:
    requests = sum(sample.candidate.requests for sample in canary.points)
    errors = sum(sample.candidate.errors for sample in canary.points)
    seconds = canary.points[-1].at_seconds - canary.points[0].at_seconds
    lost = sum(sample.candidate.lost + sample.stable.lost for sample in canary.points)
    note = f"{errors} errors in {requests:,} requests, {lost} lost, {duration(seconds)}"
    if canary.rollback is not None:
        value = f"rolled back{f' at {canary.rollback.percent:g} %' if canary.rollback.percent else ''}"
    else:
        promoted = any(event.kind is EventKind.PROMOTED for event in canary.events)
        value = "promoted" if promoted else f"at {canary.points[-1].percent:g} %"
    return Figure(label=f"Canary, {target}", value=value, note=note)

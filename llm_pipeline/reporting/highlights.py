"""The few figures that go on top of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llm_pipeline.reporting.model import AccuracyStudy, CanaryStudy, Highlight, LoadStudy, Variant
from llm_pipeline.reporting.quantities import duration, measure, megabytes, points


def highlights(
    variants: Sequence[Variant],
    accuracy: Sequence[AccuracyStudy],
    loads: Sequence[LoadStudy],
    canaries: Sequence[CanaryStudy],
) -> tuple[Highlight, ...]:
    """Accuracy and size of the chosen recipe, then each load test and canary."""
    chosen = next((variant for variant in variants if variant.chosen), None)
    baseline = next((variant for variant in variants if variant.is_baseline), None)
    found = [*_size(chosen, baseline), *_accuracy(chosen, accuracy)]
    return (*found, *map(_load, filter(_has_answers, loads)), *(_canary(study) for study in canaries if study.samples))


def _size(chosen: Variant | None, baseline: Variant | None) -> Iterator[Highlight]:
    if chosen and baseline:
        note = f"{100 * chosen.bytes / baseline.bytes:.0f} % of the baseline's {megabytes(baseline.bytes)}"
        yield Highlight(label=f"Size, {chosen.name}", value=megabytes(chosen.bytes), note=note)


def _accuracy(chosen: Variant | None, accuracy: Sequence[AccuracyStudy]) -> Iterator[Highlight]:
    for study in accuracy:
        loss = study.comparison.pooled.loss
        if chosen and study.name == chosen.name and loss:
            confidence = f"{100 * study.comparison.confidence:g} %"
            note = f"at most {points(loss.upper)} at {confidence}, {points(study.margin)} allowed"
            yield Highlight(label="Accuracy lost", value=f"{points(loss.estimate)} points", note=note)


def _has_answers(load: LoadStudy) -> bool:
    return any(point.first_token_milliseconds is not None for point in load.requests)


def _load(load: LoadStudy) -> Highlight:
    firsts = [p.first_token_milliseconds for p in load.requests if p.first_token_milliseconds is not None]
    slow = measure(float(np.quantile(firsts, 0.95)), "ms")
    failed = sum(point.failed for point in load.requests)
    note = (
        f"p95 at {load.rate_per_second:g} requests/s, limit {measure(load.first_token_limit, 'ms')}; "
        f"{failed} of {len(load.requests):,} failed"
    )
    return Highlight(label=f"First token under load, {load.target}", value=slow, note=note)


def _canary(study: CanaryStudy) -> Highlight:
    requests = sum(sample.canary.requests for sample in study.samples)
    errors = sum(sample.canary.errors for sample in study.samples)
    reached = max(sample.percent for sample in study.samples)
    seconds = study.samples[-1].seconds - study.samples[0].seconds
    note = f"{errors} errors in {requests:,} requests, {duration(seconds)}"
    return Highlight(label=f"Canary, {study.target}", value=f"reached {reached:g} %", note=note)

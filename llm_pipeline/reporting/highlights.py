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
    """Size, speed and accuracy of each chosen recipe, then each load test and canary."""
    baseline = next((variant for variant in variants if variant.is_baseline), None)
    found: list[Highlight] = []
    for chosen in (variant for variant in variants if variant.chosen):
        found += [*_size(chosen, baseline), *_speed(chosen, baseline), *_accuracy(chosen, accuracy)]
    return (*found, *map(_load, filter(_has_answers, loads)), *(_canary(study) for study in canaries if study.samples))


def _size(chosen: Variant, baseline: Variant | None) -> Iterator[Highlight]:
    if baseline and chosen is not baseline:
        note = f"{100 * chosen.bytes / baseline.bytes:.0f} % of the baseline's {megabytes(baseline.bytes)}"
        yield Highlight(label=f"Size, {chosen.name}", value=megabytes(chosen.bytes), note=note)


def _speed(chosen: Variant, baseline: Variant | None) -> Iterator[Highlight]:
    """The engine alone, one request; compared only with a baseline that was built for the same target and device."""
    for engine in chosen.engines:
        if not engine.single_stream:
            continue
        batched = f"{engine.batched:,.0f} with {engine.sequences or 'several'} requests" if engine.batched else ""
        compared = [
            f"one alone is {100 * engine.single_stream / other.single_stream:.0f} % of the baseline"
            for other in (baseline.engines if baseline and baseline is not chosen else ())
            if (other.target, other.device) == (engine.target, engine.device) and other.single_stream
        ]
        notes = [note for note in (batched, *compared) if note]
        yield Highlight(
            label=f"Engine alone, {engine.target}", value=f"{engine.single_stream:,.0f} tokens/s", note="; ".join(notes)
        )


def _accuracy(chosen: Variant, accuracy: Sequence[AccuracyStudy]) -> Iterator[Highlight]:
    for study in accuracy:
        loss = study.comparison.pooled.loss
        if study.name == chosen.name and loss:
            confidence = f"{100 * study.comparison.confidence:g} %"
            note = f"at most {points(loss.upper)} at {confidence}, {points(study.margin)} allowed"
            yield Highlight(label=f"Accuracy lost, {chosen.name}", value=f"{points(loss.estimate)} points", note=note)


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
    lost = sum(sample.canary.lost + sample.stable.lost for sample in study.samples)
    note = f"{errors} errors in {requests:,} requests, {lost} lost, {duration(seconds)}"
    return Highlight(label=f"Canary, {study.target}", value=f"reached {reached:g} %", note=note)

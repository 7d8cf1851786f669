"""Every recipe as it was tried, and what it is compared with: sizes of checkpoints, speeds, accuracy, or why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from llm_pipeline.accuracy.evaluation import EvaluationSummary
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.planning.ladder import climbing_order
from llm_pipeline.planning.target_plan import TargetPlan
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.execute import results_name
from llm_pipeline.release.record import ReleaseRecord
from llm_pipeline.reporting.failures import failure_in_words
from llm_pipeline.reporting.model import AccuracyStudy, EngineSpeed, FailedStage, Trial, Variant
from llm_pipeline.reporting.production import UNQUANTIZED, Results, chosen_recipes, served_before
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.pointers import Pointer, Pointers

PartT = TypeVar("PartT")


class Attempt(Protocol):
    """Reads a part of the report; None when it could not be read, which is then noted."""

    def __call__(self, what: str, read: Callable[[], PartT], /) -> PartT | None:
        """Read `what` by calling `read`."""


class VariantReader:
    """Collects the variants of one release."""

    def __init__(self, store: ArtifactStore, record: ReleaseRecord, results: Results, attempt: Attempt) -> None:
        self._store = store
        self._record = record
        self._results = results
        self._attempt = attempt

    def variants(self, pointers: Mapping[str, Pointers]) -> tuple[Variant, ...]:
        """The baseline, what was in production before if that was something else, then the recipes as tried."""
        release_id = self._record.release_id
        before = {name: served_before(place, release_id, self._results, name) for name, place in pointers.items()}
        return (*self._baseline(before), *self._predecessors(before), *self._tried())

    def _baseline(self, before: Mapping[str, Pointer | None]) -> Iterator[Variant]:
        """The checkpoint as downloaded; a release that tries recipe `none` shows it as that recipe instead."""
        download = self._results.get(("download", ""))
        size = self._size(download.artifacts.get("checkpoint")) if download else None
        if size is None or any(recipe.weights == UNQUANTIZED for recipe in self._record.release.recipes):
            return
        found = [self._baseline_speed(target, pointer) for target, pointer in before.items()]
        engines = tuple(speed for speed in found if speed is not None)
        origins = dict.fromkeys(f"in production before: {self._origin(engine)}" for engine in engines)
        yield Variant(name="baseline (none)", bytes=size, is_baseline=True, origin="; ".join(origins), engines=engines)

    def _baseline_speed(self, target: str, before: Pointer | None) -> EngineSpeed | None:
        unquantized = before is not None and before.recipe == UNQUANTIZED
        return self._speed_elsewhere(before.release_id, target) if before is not None and unquantized else None

    def _predecessors(self, before: Mapping[str, Pointer | None]) -> Iterator[Variant]:
        """What was in production before, by release; the unquantized one is the baseline's row already."""
        for release_id in dict.fromkeys(pointer.release_id for pointer in before.values() if pointer):
            on = {name: pointer for name, pointer in before.items() if pointer and pointer.release_id == release_id}
            recipe = next(iter(on.values())).recipe
            quantized = self._result(release_id, "quantize", recipe)
            size = self._size(quantized.artifacts.get("checkpoint")) if quantized else None
            tries_none = any(tried.weights == UNQUANTIZED for tried in self._record.release.recipes)
            if size is None or (recipe == UNQUANTIZED and not tries_none):
                continue
            engines = tuple(speed for name in on if (speed := self._speed_elsewhere(release_id, name)) is not None)
            origin = self._origin(engines[0]) if engines else f"release {release_id}"
            yield Variant(
                name=f"{recipe}, in production before", bytes=size, is_reference=True, origin=origin, engines=engines
            )

    def _tried(self) -> Iterator[Variant]:
        chosen = chosen_recipes(self._results)
        for recipe in map(self._record.release.recipe, climbing_order(self._record.release, self._record.facts)):
            quantized = self._results.get(("quantize", recipe.name))
            size = self._size(quantized.artifacts.get("checkpoint")) if quantized else None
            if size is None:
                continue
            gate = self._results.get(("accuracy", recipe.name))
            yield Variant(
                name=recipe.name,
                bytes=size,
                verdict=gate.judgement.verdict if gate and gate.judgement else None,
                chosen=recipe.name in chosen.values(),
                is_baseline=recipe.weights == UNQUANTIZED,
                engines=self._own_speeds(recipe.name),
            )

    def _own_speeds(self, recipe: str) -> tuple[EngineSpeed, ...]:
        """Of the targets that chose the recipe."""
        targets = [target for target, chosen in chosen_recipes(self._results).items() if chosen == recipe]
        builds = [self._results.get(("build", target)) for target in targets]
        return tuple(_speed(build) for build in builds if build is not None)

    def _speed_elsewhere(self, release_id: str, target: str) -> EngineSpeed | None:
        build = self._result(release_id, "build", target)
        return None if build is None else _speed(build).model_copy(update={"release_id": release_id})

    def _origin(self, engine: EngineSpeed) -> str:
        """The release, and the device when this release's engine was measured on another one."""
        build = self._results.get(("build", engine.target))
        own = _speed(build).device if build else engine.device
        elsewhere = f", measured on {engine.device}" if own != engine.device else ""
        return f"release {engine.release_id}{elsewhere}"

    def _result(self, release_id: str, stage: str, subject: str) -> StageResult | None:
        name = results_name(release_id, stage, subject)
        document = self._attempt(name, lambda: self._store.read_document(name))
        if document is None:
            return None
        return self._attempt(name, lambda: StageResult.model_validate(document.value))

    def _size(self, ref: ArtifactRef | None) -> int | None:
        return None if ref is None else self._attempt(f"size of {ref}", lambda: self._store.manifest(ref).size)


def _speed(build: StageResult) -> EngineSpeed:
    sequences = build.metrics.get("batched_sequences")
    return EngineSpeed(
        target=build.subject,
        single_stream=_number(build.metrics.get("single_stream_tokens_per_second")),
        batched=_number(build.metrics.get("batched_tokens_per_second")),
        sequences=sequences if isinstance(sequences, int) else None,
        device=str(build.metrics.get("device") or ""),
    )


def _number(metric: Metric | None) -> float | None:
    """A rate; zero is how a builder says that it measured none."""
    return float(metric) if isinstance(metric, int | float) and metric > 0 else None


Summary = Callable[[str, str], EvaluationSummary | None]
"""The summary of the evaluation of a stage and a subject."""


class TrialReader:
    """Puts together what the parts of a report know of each recipe.

    Args:
        results: The release's results.
        summary: Reads the summary of an evaluation.
        passed_over: Says why a recipe need not be tried; None when it must be.
        planned: What was planned for each target; it predicts speeds.
    """

    def __init__(
        self,
        results: Results,
        summary: Summary,
        passed_over: Callable[[str], str | None],
        planned: Sequence[TargetPlan] = (),
    ) -> None:
        self._results = results
        self._summary = summary
        self._passed_over = passed_over
        self._planned = planned

    def trials(
        self,
        recipes: Sequence[QuantizationRecipe],
        variants: Sequence[Variant],
        accuracy: Sequence[AccuracyStudy],
        failures: Sequence[FailedStage],
    ) -> tuple[Trial, ...]:
        """One for each of the recipes, in their order."""
        published = next((variant.bytes for variant in variants if variant.is_baseline), None)
        sizes = {variant.name: variant for variant in variants if not variant.is_reference}
        studies = {study.name: study for study in accuracy}
        chosen = chosen_recipes(self._results)
        found = []
        for recipe in recipes:
            name = recipe.name
            variant, study = sizes.get(name), studies.get(name)
            gate, quantized = self._results.get(("accuracy", name)), self._results.get(("quantize", name))
            summary = self._summary("accuracy", name) or EvaluationSummary(tasks={})
            bits = quantized.metrics.get("effective_bits") if quantized else None
            trial = Trial(
                name=name,
                weights=recipe.weights,
                verdict=gate.judgement.verdict if gate and gate.judgement else None,
                outcome=self._outcome(name, failures),
                chosen_on=tuple(target for target, taken in chosen.items() if taken == name),
                bytes=variant.bytes if variant else None,
                size_ratio=variant.bytes / published if variant and published else None,
                effective_bits=float(bits) if isinstance(bits, int | float) else None,
                pooled=study.comparison.pooled if study else None,
                asked=summary.asked,
                planned=summary.planned,
                look=summary.look,
                looks=summary.looks,
                speeds=(*_predicted(name, self._planned), *(_measured(variant) if variant else ())),
            )
            found.append(trial)
        return tuple(found)

    def _outcome(self, recipe: str, failures: Sequence[FailedStage]) -> str:
        """An error comes first: it is of the last time that the recipe was tried."""
        for failed in failures:
            if failed.subject == recipe and failed.stage in ("quantize", "accuracy"):
                return failure_in_words(failed)
        if ("accuracy", recipe) in self._results:
            return ""
        if ("quantize", recipe) in self._results:
            return "quantized, not judged yet"
        why = self._passed_over(recipe)
        return f"passed over: {why}" if why else "not tried"


def _predicted(recipe: str, planned: Sequence[TargetPlan]) -> Iterator[str]:
    for target in planned:
        speed = next((plan.speed for plan in target.recipes if plan.recipe == recipe), None)
        if speed is not None:
            yield (
                f"{target.name}, predicted: {speed.alone:.2f} x the baseline alone, "
                f"{speed.together:.2f} x with {speed.requests} requests"
            )


def _measured(variant: Variant) -> Iterator[str]:
    for engine in variant.engines:
        rates = [
            f"{rate:,.0f} tokens/s {how}"
            for rate, how in (
                (engine.single_stream, "alone"),
                (engine.batched, f"with {engine.sequences or 'several'} requests"),
            )
            if rate
        ]
        if rates:
            yield f"{engine.target}, measured: {', '.join(rates)}"

"""Every recipe of a release as it was tried: size, accuracy, distance from the baseline, verdict; or why it was not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llm_pipeline.accuracy.evaluation import EvaluationSummary
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.planning.model import TargetPlan
from llm_pipeline.reporting.failures import failure_in_words
from llm_pipeline.reporting.model import AccuracyStudy, FailedStage, Trial, Variant
from llm_pipeline.reporting.standing import Results, chosen_recipes

Summary = Callable[[str, str], EvaluationSummary | None]
"""The summary of the evaluation of a stage and a subject."""


class TrialReader:
    """Puts together what the parts of a report know of each recipe.

    Args:
        results: The release's results.
        baseline: The summary of the baseline's evaluation; None without one.
        summary: Reads the summary of an evaluation.
        passed_over: Says why a recipe need not be tried; None when it must be.
        planned: What was planned for each target; it predicts speeds.
    """

    def __init__(
        self,
        results: Results,
        baseline: EvaluationSummary | None,
        summary: Summary,
        passed_over: Callable[[str], str | None],
        planned: Sequence[TargetPlan] = (),
    ) -> None:
        self._results = results
        self._baseline = baseline
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
        found = []
        for recipe in recipes:
            trial = self._trial(recipe, self._outcome(recipe.name, failures))
            variant, study = sizes.get(recipe.name), studies.get(recipe.name)
            found.append(
                trial.model_copy(
                    update={
                        "bytes": variant.bytes if variant else None,
                        "size_ratio": variant.bytes / published if variant and published else None,
                        "pooled": study.comparison.pooled if study else None,
                        "speeds": (*_predicted(recipe.name, self._planned), *(_measured(variant) if variant else ())),
                    }
                )
            )
        return tuple(found)

    def _trial(self, recipe: QuantizationRecipe, outcome: str) -> Trial:
        gate, quantized = self._results.get(("accuracy", recipe.name)), self._results.get(("quantize", recipe.name))
        summary = self._summary("accuracy", recipe.name) or EvaluationSummary(tasks={}, seconds={}, versions={})
        bits = quantized.metrics.get("effective_bits") if quantized else None
        return Trial(
            name=recipe.name,
            weights=recipe.weights,
            verdict=gate.judgement.verdict if gate and gate.judgement else None,
            outcome=outcome,
            chosen_on=tuple(target for target, name in chosen_recipes(self._results).items() if name == recipe.name),
            effective_bits=float(bits) if isinstance(bits, int | float) else None,
            asked=summary.asked,
            planned=summary.planned,
            look=summary.look,
            looks=summary.looks,
            divergence=summary.divergence,
            perplexity_before=self._baseline.perplexity if self._baseline else None,
        )

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

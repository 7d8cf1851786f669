"""How fast a recipe is predicted to be on a target, and whether that is what the policy demands."""

from __future__ import annotations

from typing import NamedTuple

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.release import ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import Refused, in_format, is_known_to_run
from llm_pipeline.planning.formats import OFFERED, nearest_weights
from llm_pipeline.planning.ladder import decoded_together
from llm_pipeline.planning.roofline import RooflineFigures, roofline_figures
from llm_pipeline.planning.speed import PUBLISHED, Tokens, relative_speed, tokens_per_second
from llm_pipeline.planning.weight_storage import bits_per_weight


class SpeedFigures(Frozen):
    """Output tokens a second, by those of the unquantized model on the same target: a prediction.

    Attributes:
        alone: With one request at a time.
        together: With `requests` at a time.
        requests: What the policy names, or the target holds if that is fewer.
    """

    alone: float
    together: float
    requests: int


class Throughput(Frozen):
    """Output tokens a second of all requests together, prompts included.

    Attributes:
        alone: Predicted with one request at a time (`planning/speed.py`).
        together: Predicted with all that the target holds.
        bounds: What the hardware allows at best, for requests of the same lengths.
    """

    alone: float
    together: float
    bounds: RooflineFigures


class JudgedSpeed(NamedTuple):
    """A prediction; the refusal where it is below what the policy demands; what could not be judged."""

    figures: SpeedFigures | None
    refused: Refused | None
    warnings: tuple[str, ...] = ()


def judge_speed(release: ResolvedRelease, target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> JudgedSpeed:
    """Predict a recipe's speed and hold it against the policy.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    requests, policy = decoded_together(release, target), release.policy.speed
    alone = relative_speed(facts, target, recipe, 1)
    together = relative_speed(facts, target, recipe, requests)
    if alone is None or together is None:
        unjudged = (f"policy speed is not judged: nothing is predicted for {target.accelerator}",) if policy else ()
        return JudgedSpeed(None, None, unjudged)
    figures = SpeedFigures(alone=alone, together=together, requests=requests)
    if policy is None or together >= policy.minimum_ratio:
        return JudgedSpeed(figures, None)
    reason = (
        f"predicted at {together:.2f} of the unquantized model's speed with {requests} requests, "
        f"policy speed demands {policy.minimum_ratio:.2f}"
    )
    return JudgedSpeed(figures, Refused(reason=reason, nearest=_nearest(release, target, recipe, facts)))


def expected_throughput(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> Throughput | None:
    """Tokens a second of requests as long as those that the prediction was fitted to; None on a CPU.

    Where the target takes none so long, of the longest that it takes.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    longest = target.limits.maximum_tokens_per_request
    output = min(PUBLISHED.output, longest // 2)
    tokens = Tokens(min(PUBLISHED.prompt, longest - output), output)
    alone = tokens_per_second(facts, target, recipe, 1, tokens)
    together = tokens_per_second(facts, target, recipe, target.limits.maximum_sequences, tokens)
    bounds = roofline_figures(facts, target, recipe, tokens)
    if alone is None or together is None or bounds is None:
        return None
    return Throughput(alone=alone, together=together, bounds=bounds)


def _nearest(release: ResolvedRelease, target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> str:
    """The format nearest in size that is fast enough, or the demand that this one meets."""
    demanded = release.policy.speed.minimum_ratio if release.policy.speed else 0.0
    requests = decoded_together(release, target)

    def is_fast(weights: WeightFormat) -> bool:
        other = in_format(recipe, weights)
        fast = (relative_speed(facts, target, other, requests) or 0.0) >= demanded
        return fast and is_known_to_run(target, other, release.baseline.dtype)

    fast = list(filter(is_fast, OFFERED))
    return f"weights: {nearest_weights(bits_per_weight(recipe), fast)}" if fast else "a lower speed.minimum_ratio"

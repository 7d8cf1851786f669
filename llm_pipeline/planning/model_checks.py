"""What a release asks of a model that the model cannot do, whatever the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.workload import Lengths
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.formats import asked_by
from llm_pipeline.planning.weight_storage import is_excluded
from llm_pipeline.quantization.whole_blocks import BLOCKWISE

_EXPERTS = "*experts*"
_SEEN_WITH = "seen with modelopt 0.47.0 and Transformers 5.5.4"
_NOT_EXPORTED: Mapping[str, str] = {
    "falcon": f"leaves its layers unquantized ({_SEEN_WITH})",
    "bloom": f"fails on its layers ({_SEEN_WITH})",
}
"""Architectures of which no recipe makes an export that passes its validation."""


def check_model(loaded: LoadedRelease, facts: ModelFacts) -> None:
    """Refuse recipes that cannot quantize the model, and lengths beyond its context.

    Raises:
        Unsupported: A recipe cannot be made of the model.
        ConfigError: The evaluation gives the model more tokens than its context has.
    """
    problems = [
        f"{loaded.configs_root / 'quantization' / (recipe.file_name + '.yaml')}: recipe {recipe.name}: {problem}"
        for recipe in loaded.release.recipes
        for problem in recipe_problems(recipe, facts)
    ]
    if problems:
        raise Unsupported("\n".join(problems), hint="remove or change them; nothing was started")
    asked = loaded.release.evaluation.maximum_length
    if asked > facts.context_length:
        raise ConfigError(
            f"evaluation.maximum_length {asked} is beyond the model's context of {facts.context_length} tokens",
            where=str(loaded.path),
            hint=f"evaluation.maximum_length: {facts.context_length}",
        )


def recipe_problems(recipe: QuantizationRecipe, facts: ModelFacts) -> Iterator[str]:
    """Why a recipe cannot be made of a model, and what to do instead; one line each."""
    if recipe.weights == "none":
        return
    if facts.stored_format:
        yield (
            f"the model is quantized already ({facts.stored_format}), and modelopt quantizes plain weights -> recipe "
            "none, or the model's unquantized repository"
        )
        return
    kinds = {group.kind for group in facts.matrices}
    if "convolution" in kinds:
        yield (
            f"the layers of {facts.model_type} are transposed (Conv1D), which modelopt's exports cannot be read back "
            "from -> recipe none"
        )
    if (seen := _NOT_EXPORTED.get(facts.model_type)) is not None:
        yield f"modelopt {seen} -> recipe none"
    yield from _expert_problems(recipe, facts)
    if recipe.calibration and recipe.calibration.chat_template and facts.chat_template is False:
        yield (
            "calibration.chat_template renders messages with the model's own template, and the model has none -> a "
            "model with a chat template, or texts without one"
        )


def _most(lengths: Lengths | tuple[int, int] | None) -> int:
    """The longest of them."""
    if lengths is None:
        return 0
    return lengths[1] if isinstance(lengths, tuple) else lengths.maximum


def _expert_problems(recipe: QuantizationRecipe, facts: ModelFacts) -> Iterator[str]:
    """Transformers 5 holds all experts of a layer in one tensor, which exports are not read back into."""
    experts = [name for name, group in facts.linears() if ".experts." in group.name]
    if not experts:
        return
    excluded = ", ".join(f'"{pattern}"' for pattern in (*recipe.exclude, _EXPERTS))
    kept = all(is_excluded(name, recipe.exclude) for name in experts)
    advice: tuple[str, ...] = () if kept else (f"exclude: [{excluded}]",)
    if not BLOCKWISE.isdisjoint(asked_by(recipe).weights):
        advice = ("weights of 8 bits", *advice)
        yield f"modelopt's export of INT4 fails on mixtures of experts ({_SEEN_WITH}) -> {' with '.join(advice)}"
    elif not kept:
        yield f"exports of quantized experts cannot be read back ({_SEEN_WITH}) -> {advice[0]}"


def model_warnings(loaded: LoadedRelease, facts: ModelFacts | None) -> Iterator[str]:
    """What works, though perhaps not as meant."""
    if facts is None:
        return
    if facts.end_token is False:
        yield "neither config.json nor generation_config.json names eos_token_id: answers end only at their longest"
    for target in loaded.release.targets:
        asked = target.limits.maximum_tokens_per_request
        stated = "maximum_tokens_per_request" in target.limits.model_fields_set
        if stated and asked > facts.context_length:
            yield (
                f"{target.name}: limits.maximum_tokens_per_request {asked} is beyond the model's context: requests of "
                f"{facts.context_length} tokens are the longest"
            )
    workload = loaded.release.workload
    longest = _most(workload.prompt_tokens) + _most(workload.output_tokens)
    if longest > facts.context_length:
        yield f"the workload's longest requests have {longest} tokens, the model's context {facts.context_length}"

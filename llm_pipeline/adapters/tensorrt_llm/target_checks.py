"""What builders, model repositories and servers would refuse of a target with TensorRT-LLM, before anything is spent.

Each check is their own, so a plan and a build cannot disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.checkpoint import refuse_other_ranks
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import PROGRAM, command_problems
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.output_check import refuse_lost_features
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.catalog.runtime_versions import Problem, known_versions, version_order
from llm_pipeline.catalog.tables import containers, find_gpu
from llm_pipeline.config.quantization import CheckpointRanks, KvCacheFormat, QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.recorded_schema import dialect_of
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.planning.formats import Support
from llm_pipeline.quantization.tensorrt_llm_checkpoint import (
    refuse_unsupported_tensorrt_llm_checkpoint,
    tensorrt_llm_names,
)
from llm_pipeline.serving.launch_command import default_mode, nodes_of, require_launchable
from llm_pipeline.serving.triton_config.inflight_batcher import (
    extra_parameters,
    refuse_large_batches,
    target_parameters,
)

if TYPE_CHECKING:
    from llm_pipeline.engines.llm_args.checking import LlmArgsCheck


def target_problem(target: Target) -> Problem | None:
    """Why no engine can be built for a target with TensorRT-LLM, or served there, whatever the recipe.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    check = _engine_problem if target.engine == "tensorrt_llm_engine" else _llm_api_problem
    return check(target) or _launch_problem(target)


def ranks_problem(target: Target, ranks: CheckpointRanks) -> str | None:
    """Why a target's engine cannot be compiled from a checkpoint of these ranks."""
    try:
        refuse_other_ranks(target, ranks.tensor, ranks.pipeline)
    except Unsupported as error:
        return error.message
    return None


def features_problem(target: Target, weights: WeightFormat, kv_cache: KvCacheFormat) -> Problem | None:
    """Why an engine of these formats cannot be compiled, or could not do what the target's runtime options ask for.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    try:
        refuse_lost_features(target, *tensorrt_llm_names(weights, kv_cache), find_gpu(target.accelerator).sm)
    except Unsupported as error:
        return Problem(error.message, error.hint)
    return None


def llm_args_warnings(target: Target) -> tuple[str, ...]:
    """What the version of a target with the LLM API takes, though perhaps not as meant."""
    return tuple(f"LLM args: {warning}" for warning in _check(target).warnings)


def _llm_api_problem(target: Target) -> Problem | None:
    version = target.runtime_version or ""
    try:
        dialect_of(version)
    except Unsupported as error:
        return Problem(error.message, _recorded_version(version))
    try:
        _check(target).require(f"targets/{target.name}.yaml")
    except (ConfigError, Unsupported) as error:
        return Problem(error.message, error.hint or "correct limits, parallelism and runtime of the target")
    return None


def _check(target: Target) -> LlmArgsCheck:
    from llm_pipeline.engines.llm_args.checking import check_llm_args  # jsonschema takes a tenth of a second

    arguments = render_llm_args(target, model="checkpoint", checkpoint=None)
    return check_llm_args(arguments.document, arguments.version)


def _recorded_version(version: str) -> str:
    """The first known version from here on whose LLM args are recorded, and what holds it."""
    later = (known for known in known_versions() if version_order(known) > version_order(version))
    nearest = next(known for known in later if _is_recorded(known))
    images = [container.image for container in containers() if container.tensorrt_llm == nearest]
    return ", ".join((f"runtime_version: {nearest}", *(f"container: {image}" for image in images[:1])))


def _is_recorded(version: str) -> bool:
    try:
        dialect_of(version)
    except Unsupported:
        return False
    return True


def _engine_problem(target: Target) -> Problem | None:
    if (target.parallelism.expert or 1) > 1:
        return Problem("engines do not spread experts", "no parallelism.expert, or engine: tensorrt_llm_llmapi")
    if problems := command_problems(target):
        return Problem(f"{PROGRAM}: {'; '.join(problems)}", "correct them under build, limits and runtime")
    try:
        target_parameters(target, "tensorrt_llm")
        extra_parameters(target)
        refuse_large_batches(target.serving, target.limits.maximum_sequences)
    except (ConfigError, Unsupported) as error:
        return Problem(error.message, error.hint)
    return features_problem(target, "none", "none")


def _launch_problem(target: Target) -> Problem | None:
    """Why no server of the target can be started; which hosts it takes is said when it is."""
    hosts = tuple(f"host-{number}" for number in range(nodes_of(target)))
    try:
        require_launchable(target, default_mode(target), host_names=hosts)
    except Unsupported as error:
        return Problem(error.message, "correct gpus_per_node, parallelism and serving of the target")
    return None


_YES = Support("yes", "")
_NO_EXPORT = "engines are built from TensorRT-LLM checkpoints, which the recipe does not export"


def compiled_weights(target: Target, recipe: QuantizationRecipe) -> Support:
    """Whether an engine can be compiled with a recipe's weights."""
    if recipe.weights == "none":
        return _YES if recipe.tensorrt_llm_checkpoint else Support("no", _NO_EXPORT)
    if (exported := _exported(recipe, kv_cache="none")).value == "no":
        return exported
    problem = features_problem(target, recipe.weights, "none")
    return Support("no", problem.reason) if problem else _YES


def compiled_kv_cache(target: Target, recipe: QuantizationRecipe) -> Support:
    """Whether an engine can be compiled with a recipe's KV cache; the weights are judged for themselves."""
    if (exported := _exported(recipe, weights="fp8", modelopt_recipe=None)).value == "no":
        return exported
    if features_problem(target, recipe.weights, "none"):
        return _YES
    problem = features_problem(target, recipe.weights, recipe.kv_cache)
    return Support("no", problem.reason) if problem else _YES


def export_problems(target: Target, recipe: QuantizationRecipe) -> Iterator[str]:
    """Why the recipe's export is not the one that the target's engine is built from."""
    if not recipe.tensorrt_llm_checkpoint:
        yield _NO_EXPORT
    elif problem := ranks_problem(target, recipe.tensorrt_llm_ranks):
        yield problem


def export_changes(target: Target, recipe: QuantizationRecipe) -> Iterator[str]:
    """What to write into the recipe, so that it exports what the target's engine is built from."""
    if not recipe.tensorrt_llm_checkpoint:
        yield "tensorrt_llm_checkpoint: true"
    if ranks_problem(target, recipe.tensorrt_llm_ranks):
        wanted = target.parallelism
        yield f"tensorrt_llm_ranks: {{tensor: {wanted.tensor}, pipeline: {wanted.pipeline}}}"


def compiled_formats(
    target: Target, recipe: QuantizationRecipe, formats: Collection[WeightFormat]
) -> tuple[WeightFormat, ...]:
    """Those of some formats of weights that an engine can be compiled with."""
    others = [name for name in formats if name != "none"]
    return tuple(name for name in others if compiled_weights(target, _with(recipe, weights=name)).value == "yes")


def compiled_kv_caches(
    target: Target, weights: WeightFormat, formats: Collection[KvCacheFormat]
) -> tuple[KvCacheFormat, ...]:
    """Those of some formats of the KV cache that an engine with such weights can be compiled with."""
    return tuple(name for name in formats if features_problem(target, weights, name) is None)


def _exported(recipe: QuantizationRecipe, **changes: Any) -> Support:
    """Whether a TensorRT-LLM checkpoint, which engines are built from, can hold what a recipe makes."""
    try:
        refuse_unsupported_tensorrt_llm_checkpoint(_with(recipe, tensorrt_llm_checkpoint=True, **changes))
    except Unsupported as error:
        return Support("no", error.message)
    return _YES


def _with(recipe: QuantizationRecipe, **changes: Any) -> QuantizationRecipe:
    return recipe.model_copy(update=changes)

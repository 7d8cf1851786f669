"""What builders, model repositories and servers would refuse of a GPU target, checked before anything is spent.

Nothing is judged here: each check is their own, so a plan and a build cannot disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.catalog.runtime_versions import Problem, known_versions, version_order
from llm_pipeline.catalog.tables import containers, find_gpu
from llm_pipeline.config.quantization import CheckpointRanks, KvCacheFormat, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.recorded_schema import dialect_of
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.engines.trtllm_build.checkpoint import refuse_other_ranks
from llm_pipeline.engines.trtllm_build.command import PROGRAM, command_problems
from llm_pipeline.engines.trtllm_build.output_check import refuse_lost_features
from llm_pipeline.planning.interconnect import interconnect_warnings
from llm_pipeline.planning.unread_options import unread_warnings
from llm_pipeline.quantization.tensorrt_llm_checkpoint import tensorrt_llm_names
from llm_pipeline.serving.launch_rules import default_mode, nodes_of, require_launchable
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
    check = _llm_api_problem if target.engine == "tensorrt_llm_llmapi" else _engine_problem
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


def target_warnings(target: Target) -> tuple[str, ...]:
    """What works on a GPU target without a problem, though perhaps not as meant."""
    doubtful = _check(target).warnings if target.engine == "tensorrt_llm_llmapi" else ()
    return (
        *unread_warnings(target),
        *interconnect_warnings(target),
        *(f"LLM args: {warning}" for warning in doubtful),
    )


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

"""Which recipe is legal on which target: GPU generation, backend and version, container, CPU engine. Pure.

The support matrix says yes, no, partial or unknown. Only `no` refuses; `partial` and `unknown` are legal with a
warning that says so, since a missing entry in a vendor's table proves nothing.
"""

from __future__ import annotations

import re
from typing import Literal

from llm_pipeline.config.quantization import QuantizationRecipe, WeightFormat
from llm_pipeline.config.target import Target
from llm_pipeline.planning.catalog import Column, containers, find_gpu, find_support, runtime_releases
from llm_pipeline.stages.contract import Frozen

BaselinePrecision = Literal["float16", "bfloat16"]

NEEDS_CUDA: frozenset[WeightFormat] = frozenset({"nvfp4"})
"""Formats that modelopt can only calibrate with a CUDA device (its dynamic block quantizer refuses CPU tensors)."""

_CPU_FORMATS: tuple[WeightFormat, ...] = (
    "none",
    "fp8",
    "int8_smoothquant",
    "int8_weight_only",
    "int4_blockwise",
    "int4_awq",
)
"""Formats whose packed weights the CPU engine builder can put into its graph."""

_MATRIX_ROWS: dict[WeightFormat, str] = {
    "fp8": "fp8",
    "int8_smoothquant": "int8_sq",
    "int8_weight_only": "int8_wo",
    "int4_blockwise": "int4_wo",
    "int4_awq": "int4_awq",
    "w4a8_awq": "w4a8_awq",
    "nvfp4": "nvfp4",
}
_BITS: dict[WeightFormat, int] = {
    "fp8": 8,
    "int4_awq": 4,
    "int8_smoothquant": 8,
    "w4a8_awq": 4,
    "int8_weight_only": 8,
    "nvfp4": 4,
    "int4_blockwise": 4,
    "none": 16,
}
"""Bits of a weight; formats of the same size in the order we would offer them."""


class Legal(Frozen):
    """The recipe can be built and served on the target, as far as is known."""

    legal: Literal[True] = True
    warnings: tuple[str, ...] = ()


class Refused(Frozen):
    """It cannot.

    Attributes:
        reason: Why, with the evidence.
        nearest: The nearest thing that is legal there.
    """

    legal: Literal[False] = False
    reason: str
    nearest: str


def judge_compatibility(target: Target, recipe: QuantizationRecipe, dtype: BaselinePrecision) -> Legal | Refused:
    """Whether a recipe is legal on a target.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    if target.accelerator == "cpu":
        return _judge_on_cpu(target, recipe)
    gpu = find_gpu(target.accelerator)
    if refused := _judge_runtime(target):
        return refused
    if target.engine == "transformers_torch":
        return _judge_transformers(recipe)
    return _judge_format(gpu.sm, _column(target), recipe, dtype)


def has_engine_compiler(version: str) -> bool:
    """Whether the TensorRT engine builder is offered for a TensorRT-LLM version: 1.0 to 1.2.x."""
    return (1, 0) <= release_numbers(version) < (1, 3)


def release_numbers(version: str) -> tuple[int, int]:
    """Major and minor number of a version such as `1.3.0rc22`; (0, 0) when it is none."""
    found = re.match(r"(\d+)\.(\d+)(?:\.|rc|$)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _judge_on_cpu(target: Target, recipe: QuantizationRecipe) -> Legal | Refused:
    if target.engine != "openvino_cpu":
        return Refused(reason=f"engine {target.engine} does not run on a CPU", nearest="engine: openvino_cpu")
    if recipe.weights not in _CPU_FORMATS:
        cuda = "; modelopt needs CUDA to calibrate it, too" if recipe.weights in NEEDS_CUDA else ""
        nearest = _nearest_format(recipe.weights, _CPU_FORMATS)
        return Refused(reason=f"the CPU engine cannot serve {recipe.weights}{cuda}", nearest=f"weights: {nearest}")
    warnings = []
    if recipe.kv_cache != "none":
        warnings.append(f"the CPU engine keeps its KV cache in 32 bit: kv_cache {recipe.kv_cache} is not served there")
    if target.weight_format in ("int8", "int4"):
        warnings.append(f"the engine compiler quantizes again ({target.weight_format}); only served accuracy sees it")
    return Legal(warnings=tuple(warnings))


def _judge_runtime(target: Target) -> Refused | None:
    """What is wrong with a GPU target whatever the recipe."""
    gpus = target.parallelism.tensor * target.parallelism.pipeline
    if target.engine == "openvino_cpu":
        return Refused(reason="engine openvino_cpu does not run on a GPU", nearest="engine: tensorrt_llm_llmapi")
    if gpus != target.accelerator_count:
        return Refused(
            reason=f"tensor x pipeline parallelism is {gpus}, accelerator_count is {target.accelerator_count}",
            nearest=f"accelerator_count: {gpus}",
        )
    if target.weight_format != "native":
        return Refused(
            reason=f"weight_format {target.weight_format} is for CPU targets", nearest="weight_format: native"
        )
    if not target.runtime_version or not target.container:
        missing = "runtime_version" if not target.runtime_version else "container"
        newest = containers()[0]
        nearest = f"runtime_version: {newest.tensorrt_llm}, container: {newest.image}"
        return Refused(reason=f"a GPU target needs {missing}", nearest=nearest)
    if target.engine == "transformers_torch":
        return None
    return _judge_version(target, target.runtime_version, target.container)


def _judge_version(target: Target, version: str, container: str) -> Refused | None:
    if target.engine == "tensorrt_llm_engine" and not has_engine_compiler(version):
        newest = [release.version for release in runtime_releases() if has_engine_compiler(release.version)][-1]
        return Refused(
            reason=f"TensorRT-LLM {version} is not offered with tensorrt_llm_engine (1.0 to 1.2.x): "
            "its engine compiler was removed upstream during 1.3",
            nearest=f"engine: tensorrt_llm_llmapi, or runtime_version: {newest}",
        )
    image = container.partition("@")[0]
    inside = {known.image: known.tensorrt_llm for known in containers()}.get(image)
    if inside == version:
        return None
    right = [known.image for known in containers() if known.tensorrt_llm == version]
    reason = f"container {image} holds TensorRT-LLM {inside}" if inside else f"container {image} is not a known one"
    nearest = f"container: {right[0]}" if right else f"runtime_version: {inside or containers()[0].tensorrt_llm}"
    return Refused(reason=f"{reason}, runtime_version is {version}", nearest=nearest)


def _judge_transformers(recipe: QuantizationRecipe) -> Legal | Refused:
    if recipe.weights == "none":
        return Legal()
    return Refused(
        reason=f"Transformers does not read modelopt's {recipe.weights} checkpoints (it drops their scales)",
        nearest="weights: none, or engine: tensorrt_llm_llmapi",
    )


def _judge_format(sm: str, column: Column, recipe: QuantizationRecipe, dtype: BaselinePrecision) -> Legal | Refused:
    row = _MATRIX_ROWS.get(recipe.weights, "fp16" if dtype == "float16" else "bf16")
    cell = find_support(sm, row, column)
    if cell.value == "no":
        legal = [name for name, other in _MATRIX_ROWS.items() if find_support(sm, other, column).value == "yes"]
        nearest = _nearest_format(recipe.weights, (*legal, "none"))
        return Refused(
            reason=f"{recipe.weights} does not run on {sm} with {_BACKENDS[column]} ({cell.why})",
            nearest=f"weights: {nearest}",
        )
    warnings = []
    if cell.value != "yes":
        warnings.append(f"{recipe.weights} on {sm} with {_BACKENDS[column]} is {cell.value} in our tables ({cell.why})")
    if recipe.kv_cache == "fp8":
        kv_cell = find_support(sm, "kv_fp8", column)
        if kv_cell.value == "no":
            return Refused(reason=f"an fp8 KV cache does not run on {sm} ({kv_cell.why})", nearest="kv_cache: none")
        if kv_cell.value != "yes":
            warnings.append(f"an fp8 KV cache on {sm} is {kv_cell.value} in our tables ({kv_cell.why})")
    return Legal(warnings=tuple(warnings))


_BACKENDS: dict[Column, str] = {
    "engine_1_2": "TensorRT engines",
    "pytorch_1_2": "TensorRT-LLM 1.x",
    "pytorch_main": "TensorRT-LLM 1.3 and later",
}


def _column(target: Target) -> Column:
    if target.engine == "tensorrt_llm_engine":
        return "engine_1_2"
    return "pytorch_1_2" if release_numbers(target.runtime_version or "") < (1, 3) else "pytorch_main"


def _nearest_format(wanted: WeightFormat, legal: tuple[WeightFormat, ...]) -> WeightFormat:
    """The legal format whose weights are nearest in size."""
    order = list(_BITS)
    return min(legal, key=lambda name: (abs(_BITS[name] - _BITS[wanted]), order.index(name)))

"""A TensorRT-LLM checkpoint before it is built: complete, sound, and for as many ranks as the target has.

The tool itself reads weights for minutes before it notices a missing or cut file. The shape of `config.json` is from
TensorRT-LLM's checkpoint document, its `PretrainedConfig` and modelopt 0.37's exporter; further keys of an architecture
are left alone. Types are not converted: what TensorRT-LLM would not read is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from llm_pipeline.artifacts.safetensors_header import read_header
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.json_document import read_object
from llm_pipeline.config.target import Target

QuantAlgorithm = Literal[
    "W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ", "W8A16_GPTQ", "W4A16_GPTQ", "W8A8_SQ_PER_CHANNEL",
    "W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "W4A8_QSERVE_PER_GROUP", "W4A8_QSERVE_PER_CHANNEL", "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN", "FP8_BLOCK_SCALES", "INT8", "MIXED_PRECISION", "NVFP4", "W4A8_NVFP4_FP8",
    "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8", "W4A16_MXFP4", "NO_QUANT",
]  # fmt: skip
KvCacheAlgorithm = Literal["FP8", "INT8", "NVFP4"]
PositiveInt = Field(ge=1)
CONFIG_FILE = "config.json"
_MIXED_FILE = "quant_cfg.json"
_RANK_FILE = re.compile(r"rank(\d+)\.safetensors")
_GROUPED = ("W4A16_AWQ", "W4A8_AWQ", "W4A16_GPTQ")


class _Part(BaseModel):
    # Not `Frozen`: a checkpoint has more fields than these, and their types must be exact.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class CheckpointMapping(_Part):
    """How the weights are spread over ranks."""

    world_size: int = PositiveInt
    tp_size: int = PositiveInt
    pp_size: int = PositiveInt
    cp_size: int = Field(default=1, ge=1)


class CheckpointQuantization(_Part):
    """How the weights and the KV cache are quantized; None where they are not."""

    quant_algo: QuantAlgorithm | None = None
    kv_cache_quant_algo: KvCacheAlgorithm | None = None
    group_size: int | None = 64
    exclude_modules: list[str] | None = None
    has_zero_point: bool = False
    pre_quant_scale: bool = False


class CheckpointConfig(_Part):
    """The content of `config.json`.

    Attributes:
        architecture: TensorRT-LLM's name of the model's class.
    """

    architecture: str
    dtype: Literal["float16", "bfloat16", "float32"]
    hidden_size: int = PositiveInt
    num_hidden_layers: int = PositiveInt
    num_attention_heads: int = PositiveInt
    vocab_size: int = PositiveInt
    hidden_act: str
    mapping: CheckpointMapping
    quantization: CheckpointQuantization | None = None
    num_key_value_heads: int | None = None
    head_size: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int | None = None
    rotary_scaling: dict[str, JsonValue] | None = None
    logits_dtype: Literal["float16", "float32"] = "float32"

    @property
    def algorithm(self) -> str | None:
        """Format of the weights; None for none."""
        found = self.quantization.quant_algo if self.quantization else None
        return None if found == "NO_QUANT" else found

    @property
    def kv_algorithm(self) -> str | None:
        """Format of the KV cache; None for the weights' type."""
        return self.quantization.kv_cache_quant_algo if self.quantization else None


@dataclass(frozen=True)
class BuildCheckpoint:
    """A checkpoint that can be built.

    Attributes:
        directory: Where it is.
        config: Its `config.json`.
        rank_bytes: Size of each rank's weights.
    """

    directory: Path
    config: CheckpointConfig
    rank_bytes: tuple[int, ...]


def read_build_checkpoint(directory: Path, target: Target) -> BuildCheckpoint:
    """Check a checkpoint for a target; the weights' headers are read, the weights are not.

    Raises:
        IntegrityError: It is incomplete or damaged; every problem is named.
        Unsupported: It is spread over other ranks than the target's.
    """
    config = _read_config(directory / CONFIG_FILE)
    mapping = config.mapping
    refuse_other_ranks(target, mapping.tp_size, mapping.pp_size)
    problems = [*_mapping_problems(config), *_quantization_problems(config, directory)]
    problems += _rank_problems(directory, mapping.world_size)
    if problems:
        raise IntegrityError(
            f"the TensorRT-LLM checkpoint cannot be built: {'; '.join(problems)}",
            where=str(directory),
            hint="run the quantize stage again: nothing was built",
        )
    return BuildCheckpoint(
        directory,
        config,
        tuple((directory / f"rank{rank}.safetensors").stat().st_size for rank in range(mapping.world_size)),
    )


def refuse_other_ranks(target: Target, tensor: int, pipeline: int) -> None:
    """Refuse a checkpoint that is spread over other ranks than the target: no flag of the tool changes them.

    Raises:
        Unsupported: It is.
    """
    wanted = target.parallelism
    if (tensor, pipeline) != (wanted.tensor, wanted.pipeline):
        raise Unsupported(
            f"the TensorRT-LLM checkpoint is for {tensor} x {pipeline} ranks (tensor x pipeline parallelism), "
            f"{target.name} has {wanted.tensor} x {wanted.pipeline}",
            where=f"targets/{target.name}.yaml",
            hint=f"set the recipe's tensorrt_llm_ranks: {{tensor: {wanted.tensor}, pipeline: {wanted.pipeline}}}, or "
            "use engine: tensorrt_llm_llmapi, which spreads the Hugging Face checkpoint when it loads it",
        )


def _read_config(path: Path) -> CheckpointConfig:
    try:
        return CheckpointConfig.model_validate(read_object(path, finite=False))
    except ValidationError as error:
        problem = f"not the description of a TensorRT-LLM checkpoint: {_short(error)}"
        raise IntegrityError(problem, where=str(path)) from error


def _short(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())


def _mapping_problems(config: CheckpointConfig) -> Iterator[str]:
    mapping, tensor = config.mapping, config.mapping.tp_size
    if mapping.world_size != tensor * mapping.pp_size * mapping.cp_size:
        yield f"mapping.world_size {mapping.world_size} is not tp_size x pp_size x cp_size"
    if mapping.cp_size != 1:
        yield f"mapping.cp_size is {mapping.cp_size}: targets have tensor and pipeline parallelism only"
    if config.num_attention_heads % tensor:
        yield f"{config.num_attention_heads} attention heads are not divisible by tp_size {tensor}"
    heads = config.num_key_value_heads or config.num_attention_heads
    if heads % tensor and tensor % heads:
        yield f"{heads} key and value heads do not spread over tp_size {tensor}"
    if config.num_hidden_layers % mapping.pp_size and not hasattr(mapping, "pp_partition"):
        yield f"{config.num_hidden_layers} layers are not divisible by pp_size {mapping.pp_size}"


def _quantization_problems(config: CheckpointConfig, directory: Path) -> Iterator[str]:
    quantization = config.quantization
    if quantization is None:
        return
    if quantization.quant_algo == "INT8":
        yield "quantization.quant_algo INT8 is a format of KV caches only"
    if quantization.quant_algo == "MIXED_PRECISION" and not (directory / _MIXED_FILE).is_file():
        yield f"quantization.quant_algo MIXED_PRECISION needs {_MIXED_FILE}"
    if quantization.quant_algo not in _GROUPED:
        return
    group = quantization.group_size
    if not group:
        yield f"quantization.quant_algo {quantization.quant_algo} needs a group_size"
        return
    shard = (config.intermediate_size or 4 * config.hidden_size) // config.mapping.tp_size
    for name, width in (("hidden_size", config.hidden_size), ("intermediate_size / tp_size", shard)):
        if width % group:
            yield f"{name} {width} is not a multiple of the group size {group}"


def _rank_problems(directory: Path, world_size: int) -> Iterator[str]:
    found = {int(match[1]) for path in directory.iterdir() if (match := _RANK_FILE.fullmatch(path.name))}
    if missing := sorted(set(range(world_size)) - found):
        yield f"the weights of ranks {', '.join(map(str, missing))} of {world_size} are missing"
    if more := sorted(found - set(range(world_size))):
        yield f"there are weights of ranks {', '.join(map(str, more))}, mapping.world_size is {world_size}"
    for rank in sorted(found & set(range(world_size))):
        try:
            if not read_header(directory / f"rank{rank}.safetensors"):
                yield f"rank{rank}.safetensors holds no tensors"
        except IntegrityError as error:
            yield str(error)

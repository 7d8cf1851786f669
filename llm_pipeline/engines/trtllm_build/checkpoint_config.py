"""`config.json` of a TensorRT-LLM checkpoint, as far as a build depends on it.

Shape from TensorRT-LLM's checkpoint document, its `PretrainedConfig` and modelopt 0.37's exporter; further keys of an
architecture are left alone. Types are not converted: what TensorRT-LLM would not read is refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

QuantAlgorithm = Literal[
    "W8A16", "W4A16", "W4A16_AWQ", "W4A8_AWQ", "W8A16_GPTQ", "W4A16_GPTQ", "W8A8_SQ_PER_CHANNEL",
    "W8A8_SQ_PER_TENSOR_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", "W4A8_QSERVE_PER_GROUP", "W4A8_QSERVE_PER_CHANNEL", "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN", "FP8_BLOCK_SCALES", "INT8", "MIXED_PRECISION", "NVFP4", "W4A8_NVFP4_FP8",
    "W4A8_MXFP4_FP8", "W4A8_MXFP4_MXFP8", "W4A16_MXFP4", "NO_QUANT",
]  # fmt: skip
KvCacheAlgorithm = Literal["FP8", "INT8", "NVFP4"]

PositiveInt = Field(ge=1)


class _Part(BaseModel):
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
    """The whole file.

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

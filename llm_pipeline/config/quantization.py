"""Quantization recipes: what modelopt does to the weights, and on what data; or whose ready checkpoint is taken."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from llm_pipeline.config.model import (
    BatchSize,
    CheckpointSource,
    ConfigModel,
    Line,
    Name,
    PathText,
    Ranks,
    Revision,
    Seed,
    Tokens,
    Words,
)

WeightFormat = Literal[
    "none",
    "fp8",
    "fp8_per_channel_token",
    "fp8_block",
    "int8_smoothquant",
    "int8_weight_only",
    "int4_blockwise",
    "int4_awq",
    "w4a8_awq",
    "nvfp4",
    "nvfp4_awq",
    "mxfp4",
    "auto",
    "ready",
]
"""Names of weight (and activation) formats. `none` keeps the baseline's precision; `auto` is found layer by layer by
AutoQuantize (section `search`); `ready` is a checkpoint that somebody else quantized (`source`), in the format that its
config.json names."""

Precision = Literal["float16", "bfloat16"]
"""Of a model that is not quantized."""

KvCacheFormat = Literal["none", "fp8", "nvfp4"]
"""Format of the KV cache that the exported checkpoint asks for; `none` is the model's own precision. modelopt writes no
INT8 into a Hugging Face checkpoint."""


class FormatFacts(NamedTuple):
    """What a weight format is to modelopt, to NVIDIA's tables and to a GPU.

    Attributes:
        bits: Bits of a stored weight, without its scales.
        algorithm: modelopt's name of it, as its exports have it; naive INT4 has the label of AWQ.
        config: modelopt's own configuration that makes it.
        row: Its row in the support matrix.
        cores: Tensor cores that multiply it.
        calibrated: Its scales depend on calibration data.
        byte_scaled: Elements that share a scale of one byte: modelopt's defaults, as its exports hold them; None where
            scales are of whole tensors, channels or 128 x 128 blocks, too few to count, or of INT4 (`BLOCKWISE`).
    """

    bits: int
    algorithm: str
    config: str
    row: str
    cores: Literal["bf16", "fp8", "int8", "fp4"] = "bf16"
    calibrated: bool = False
    byte_scaled: int | None = None


WEIGHT_FORMATS: Mapping[WeightFormat, FormatFacts] = {
    "fp8": FormatFacts(8, "FP8", "FP8_DEFAULT_CFG", "fp8", "fp8", calibrated=True),
    "int8_smoothquant": FormatFacts(
        8, "W8A8_SQ_PER_CHANNEL", "INT8_SMOOTHQUANT_CFG", "int8_sq", "int8", calibrated=True
    ),
    "fp8_per_channel_token": FormatFacts(
        8, "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PER_CHANNEL_PER_TOKEN_CFG", "fp8_rowwise", "fp8"
    ),
    "fp8_block": FormatFacts(8, "fp8_pb_wo", "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", "fp8_block", "fp8"),
    "int8_weight_only": FormatFacts(8, "W8A16", "INT8_WEIGHT_ONLY_CFG", "int8_wo"),
    "int4_awq": FormatFacts(4, "W4A16_AWQ", "INT4_AWQ_CFG", "int4_awq", calibrated=True),
    "nvfp4": FormatFacts(4, "NVFP4", "NVFP4_DEFAULT_CFG", "nvfp4", "fp4", calibrated=True, byte_scaled=16),
    "w4a8_awq": FormatFacts(4, "W4A8_AWQ", "W4A8_AWQ_BETA_CFG", "w4a8_awq", "fp8", calibrated=True),
    "nvfp4_awq": FormatFacts(4, "NVFP4_AWQ", "NVFP4_AWQ_LITE_CFG", "nvfp4", "fp4", calibrated=True, byte_scaled=16),
    "mxfp4": FormatFacts(4, "mxfp4", "MXFP4_DEFAULT_CFG", "mxfp4", "fp4", byte_scaled=32),
    "int4_blockwise": FormatFacts(4, "W4A16_AWQ", "INT4_BLOCKWISE_WEIGHT_ONLY_CFG", "int4_wo"),
}
"""Every format that modelopt makes here; those of the same size in the order in which we would offer them."""

CALIBRATED: frozenset[WeightFormat] = frozenset(name for name, one in WEIGHT_FORMATS.items() if one.calibrated)

BLOCKWISE: frozenset[WeightFormat] = frozenset({"int4_blockwise", "int4_awq", "w4a8_awq"})
"""INT4, where groups of columns share a scale of four bytes."""

_MODELOPTS_GROUP: Literal[128] = 128

NEEDS_CUDA: frozenset[WeightFormat] = frozenset({"nvfp4", "nvfp4_awq", "mxfp4"})
"""FP4: it is quantized on an NVIDIA GPU only (modelopt's dynamic block quantizers are CUDA code)."""

NAMED_SET = "set:"
"""What the name of a calibration set begins with that is no file below `configs/`."""

SearchableFormat = Literal[
    "fp8", "int8_smoothquant", "int8_weight_only", "int4_blockwise", "int4_awq", "w4a8_awq", "nvfp4", "nvfp4_awq"
]


class Calibration(ConfigModel):
    """What the calibration forward passes read.

    Attributes:
        sources: Where the texts are from, as many of each: jsonl files relative to `configs/`, with a `text` field (or
            chat `messages`) in each line; or `set:<name>`, named sets of the package. One that is named twice gives
            twice as many.
        samples: How many texts of all sources together, drawn by `seed` without replacement.
        maximum_tokens: Texts are cut at this many tokens.
        batch_size: Texts a forward pass.
        seed: Seed of the draw.
        chat_template: Lines have `messages`, rendered with the model's own chat template.
        packing: Join texts (with an end token between them) and cut them into sequences of exactly `maximum_tokens`.
    """

    sources: tuple[Annotated[PathText, Field(min_length=1)], ...] = Field(min_length=1, max_length=64)
    samples: Annotated[int, Field(ge=1, le=1_000_000)]
    maximum_tokens: Tokens
    batch_size: BatchSize = 16
    seed: Seed = 0
    chat_template: bool = False
    packing: bool = False

    @model_validator(mode="after")
    def _each_source_gives_some(self) -> Calibration:
        if self.samples < len(self.sources):
            raise ValueError(f"{self.samples} samples are fewer than the sources")
        return self


class Search(ConfigModel):
    """AutoQuantize: each layer takes the cheapest of some formats, so that the mean bits of a weight meet a target.

    Each number of bits is a rung of the ladder, with a search of its own.

    Attributes:
        formats: What a layer may become; unquantized is always possible, too.
        effective_bits: Mean bits of a weight, one rung each, rising.
    """

    formats: tuple[SearchableFormat, ...] = Field(min_length=1, max_length=64)
    effective_bits: tuple[Annotated[float, Field(ge=1.0, le=16.0)], ...] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _rungs_rise_and_can_be_reached(self) -> Search:
        if any(low >= high for low, high in pairwise(self.effective_bits)):
            raise ValueError("effective_bits must rise: the cheapest is tried first")
        fewest = min(self.formats, key=lambda name: WEIGHT_FORMATS[name].bits)
        least = WEIGHT_FORMATS[fewest].bits
        if self.effective_bits[0] < least:
            raise ValueError(f"{self.effective_bits[0]:g} bits cannot be reached: {fewest} has {least}")
        return self


class CheckpointRanks(ConfigModel):
    """How a TensorRT-LLM checkpoint is spread over GPUs: as its engine will be, which no flag of the build changes.

    Attributes:
        tensor: Ranks that share each layer.
        pipeline: Groups of ranks that hold some of the layers each.
    """

    tensor: Ranks = 1
    pipeline: Ranks = 1

    @property
    def world_size(self) -> int:
        """All ranks: each is a file of the checkpoint, and a GPU of an engine instance."""
        return self.tensor * self.pipeline


class QuantizationRecipe(ConfigModel):
    """One way to quantize a checkpoint.

    Attributes:
        name: The recipe's name: the file's name without `.yaml`; a rung of a search has `-<bits>` behind it.
        description: One line for the report and the UI.
        weights: The format; left out beside `source`.
        source: For a checkpoint that somebody else quantized: `organisation/name` on the hub, a directory
            (`file:///absolute/path`) or an S3 prefix (`s3://bucket/prefix`). It is fetched, judged against the
            release's baseline and served as it is; `plan` says which engines read it.
        revision: Branch, tag or commit of `source`; each release pins it to a commit.
        group_size: Columns that share a scale, for INT4 formats; it has to divide the width of each layer, which 128
            often does not in small models.
        kv_cache: The format of the KV cache that the exported checkpoint asks for.
        exclude: Module name patterns kept at the baseline's precision.
        search: For `weights: auto`: what AutoQuantize may choose from.
        calibration: Required by formats with calibrated scales, refused by others.
        tensorrt_llm_checkpoint: Export a TensorRT-LLM checkpoint too, for the engine builder of 1.0 to 1.2.x.
        tensorrt_llm_ranks: How that checkpoint is spread: the `parallelism` of the targets that build from it.
    """

    name: Name
    description: Line = ""
    weights: WeightFormat = "ready"
    source: CheckpointSource | None = None
    revision: Revision = "main"
    group_size: Literal[32, 64, 128] = _MODELOPTS_GROUP
    kv_cache: KvCacheFormat = "none"
    exclude: Words = ("*lm_head*",)
    search: Search | None = None
    calibration: Calibration | None = None
    tensorrt_llm_checkpoint: bool = False
    tensorrt_llm_ranks: CheckpointRanks = CheckpointRanks()

    @property
    def formats(self) -> tuple[WeightFormat, ...]:
        """The formats that a layer may get."""
        return self.search.formats if self.search else (self.weights,)

    @property
    def needs_cuda(self) -> bool:
        """Whether it can be made on an NVIDIA GPU only."""
        return self.kv_cache == "nvfp4" or not NEEDS_CUDA.isdisjoint(self.formats)

    @property
    def file_name(self) -> str:
        """The recipe's file without `.yaml`: the rungs of a search share one."""
        if self.search is None or len(self.search.effective_bits) > 1:
            return self.name
        return self.name.removesuffix(f"-{self.search.effective_bits[0]:g}")

    def rungs(self) -> tuple[QuantizationRecipe, ...]:
        """The recipe itself; or one for each number of effective bits of its search, cheapest first."""
        search = self.search
        if search is None:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "name": f"{self.name}-{bits:g}",
                    "search": search.model_copy(update={"effective_bits": (bits,)}),
                }
            )
            for bits in search.effective_bits
        )

    @model_validator(mode="before")
    @classmethod
    def _others_exclude_themselves(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("weights", "ready") == "ready":
            return {"exclude": (), **given}
        return given

    @model_validator(mode="after")
    def _sections_fit(self) -> QuantizationRecipe:
        if (self.weights == "auto") != (self.search is not None):
            raise ValueError("weights: auto and a search section belong together")
        if self.group_size != _MODELOPTS_GROUP and self.weights not in BLOCKWISE:
            raise ValueError(f"group_size is for {', '.join(sorted(BLOCKWISE))}")
        if (self.weights == "ready") != (self.source is not None):
            raise ValueError("a recipe has either weights, for what is quantized here, or the source of a checkpoint")
        if self.source is None and self.revision != "main":
            raise ValueError("revision is that of a source")
        if self.tensorrt_llm_ranks.world_size > 1 and not self.tensorrt_llm_checkpoint:
            raise ValueError("tensorrt_llm_ranks is for recipes with tensorrt_llm_checkpoint: true")
        needed = self.weights in (*CALIBRATED, "auto") or (self.kv_cache != "none" and self.weights != "ready")
        if needed and self.calibration is None:
            raise ValueError(f"weights: {self.weights} has calibrated scales: add a calibration section")
        if not needed and self.calibration is not None:
            what = "source" if self.source else f"weights: {self.weights}"
            raise ValueError(f"{what} uses no calibration: remove the calibration section")
        if self.weights in ("none", "ready") and (self.kv_cache != "none" or self.tensorrt_llm_checkpoint):
            raise ValueError("the checkpoint passes through unchanged: nothing else can be asked of it")
        return self


def apportion(calibration: Calibration) -> tuple[int, ...]:
    """How many samples each source gives: as many as any other, the first ones one more where it does not divide."""
    each, rest = divmod(calibration.samples, len(calibration.sources))
    return tuple(each + (number < rest) for number in range(len(calibration.sources)))

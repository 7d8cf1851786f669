"""Reading an exported, quantized checkpoint back with plain torch: what is shipped is what gets evaluated and built.

Loading such a checkpoint through Transformers alone drops the scales without an error, and the model in
modelopt's memory differs from the exported one (the export smooths fused layers again). So the packed
tensors are the only truth, and this module is the only place that knows how to read them:

    metadata = read_quantization(directory)          # formats, group size, excluded modules
    tensors = load_tensors(directory)                # raw tensors, packed as they are
    layer = dequantize_layer(tensors, "model.layers.0.mlp.up_proj")
    facts = write_dequantized(directory, plain)      # an ordinary fp32 checkpoint

Formats (modelopt's unified Hugging Face export): a quantized layer `name` has `name.weight` and
`name.weight_scale`, and may have `name.weight_scale_2`, `name.input_scale`, `name.pre_quant_scale`.
float8_e4m3fn and int8 weights are one number an element; uint8 weights hold two signed 4-bit numbers:
the low nibble belongs to the even output row, the high nibble to the odd one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from llm_pipeline.errors import IntegrityError, Unsupported

FP8_MAXIMUM = 448.0
QUANTIZATION_FILE = "hf_quant_config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that belong to a checkpoint beside its weights and are never changed by quantization."""

ActivationFormat = Literal["fp8", "int8"]


@dataclass(frozen=True)
class QuantizationMetadata:
    """What an exported checkpoint says about its own quantization.

    Attributes:
        algorithm: modelopt's name (`FP8`, `W4A16_AWQ`, `W8A8_SQ_PER_CHANNEL`, ...); None for a plain checkpoint.
        group_size: Input columns that share a scale, for 4-bit weights; None otherwise.
        kv_cache: modelopt's name of the KV cache format; None for the model's own precision.
        excluded: Module name patterns left at the model's own precision.
        producer: The tool and version that wrote it; empty for a plain checkpoint.
    """

    algorithm: str | None
    group_size: int | None
    kv_cache: str | None
    excluded: tuple[str, ...]
    producer: str


@dataclass(frozen=True)
class DequantizedLayer:
    """One quantized linear layer as ordinary numbers.

    Attributes:
        name: Module name.
        weight: fp32, [out, in], as stored (before `pre_quant_scale`).
        pre_quant_scale: fp32, [in]: the input is multiplied by it first; None without.
        input_scale: Static scale of the activation quantizer; None when activations are not quantized.
        activation: The activation quantizer's format; None without one.
    """

    name: str
    weight: torch.Tensor
    pre_quant_scale: torch.Tensor | None
    input_scale: float | None
    activation: ActivationFormat | None

    def folded_weight(self) -> torch.Tensor:
        """The weight with `pre_quant_scale` multiplied into its columns."""
        return self.weight if self.pre_quant_scale is None else self.weight * self.pre_quant_scale


@dataclass(frozen=True)
class DequantizedFacts:
    """What `write_dequantized` did, and what an ordinary checkpoint cannot hold.

    Attributes:
        metadata: The source's own description.
        layers: Names of the layers that were dequantized.
        folded: Those whose `pre_quant_scale` went into the weight's columns.
        activation_scales: Static activation scales by layer that the plain checkpoint lost.
        kv_scales: KV cache scales by tensor name that the plain checkpoint lost.
    """

    metadata: QuantizationMetadata
    layers: tuple[str, ...]
    folded: tuple[str, ...]
    activation_scales: Mapping[str, float]
    kv_scales: Mapping[str, float]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's directory.

    Raises:
        IntegrityError: The file is missing or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise IntegrityError(f"unreadable checkpoint file: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise IntegrityError("not a JSON object", where=str(path))
    return value


def read_quantization(source: Path) -> QuantizationMetadata:
    """How the checkpoint in `source` is quantized; `algorithm` is None for a plain one.

    Raises:
        IntegrityError: `hf_quant_config.json` is there but is not modelopt's, or config.json says modelopt without it.
    """
    path = source / QUANTIZATION_FILE
    if not path.exists():
        if "quantization_config" in read_json(source / "config.json"):
            raise IntegrityError(f"config.json is quantized but {QUANTIZATION_FILE} is missing", where=str(source))
        return QuantizationMetadata(None, None, None, (), "")
    document = read_json(path)
    try:
        facts, producer = document["quantization"], document["producer"]
        return QuantizationMetadata(
            algorithm=facts["quant_algo"],
            group_size=facts.get("group_size"),
            kv_cache=facts.get("kv_cache_quant_algo"),
            excluded=tuple(facts.get("exclude_modules") or ()),
            producer=f"{producer['name']} {producer['version']}",
        )
    except (KeyError, TypeError) as error:
        raise IntegrityError(f"not modelopt's quantization file: {error!r}", where=str(path)) from error


def load_tensors(source: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint by name, packed as stored.

    Raises:
        IntegrityError: No safetensors file, a damaged one, or one that the index lists and the directory lacks.
    """
    index = source / "model.safetensors.index.json"
    if index.exists():
        files = sorted({str(file) for file in read_json(index).get("weight_map", {}).values()})
    else:
        files = ["model.safetensors"]
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(source / file))
        except (OSError, SafetensorError) as error:
            raise IntegrityError(f"unreadable weights: {error}", where=str(source / file)) from error
    return tensors


def quantized_layers(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the quantized layers, in the checkpoint's order of names."""
    return sorted(key.removesuffix(".weight_scale") for key in tensors if key.endswith(".weight_scale"))


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [out / 2, in] to signed int8 numbers in -8..7, [out, in]."""
    nibbles = torch.stack([packed & 0xF, packed >> 4], dim=1).reshape(-1, packed.shape[-1]).to(torch.int8)
    return torch.where(nibbles > 7, nibbles - 16, nibbles)  # noqa: PLR2004 - two's complement of four bits


def quantize_fp8(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to e4m3 at a static scale, saturating, and back to fp32."""
    scaled = (values.float() / scale).clamp(-FP8_MAXIMUM, FP8_MAXIMUM)
    return scaled.to(torch.float8_e4m3fn).float() * scale


def quantize_int8(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round to signed 8 bits at a static scale, saturating, and back to fp32."""
    return (values.float() / scale).round().clamp(-128, 127) * scale


def dequantize_layer(tensors: Mapping[str, torch.Tensor], name: str) -> DequantizedLayer:
    """One quantized layer as ordinary numbers.

    Raises:
        Unsupported: The weight's storage is none of float8_e4m3fn, int8, packed int4.
        IntegrityError: Shapes of weight and scale do not fit each other.
    """
    packed, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    if packed.dtype is torch.uint8 and scale.dtype is not torch.float8_e4m3fn:
        weight, activation = _dequantize_int4(packed, scale.float(), tensors.get(f"{name}.weight_scale_2"), name), "fp8"
    elif packed.dtype in (torch.float8_e4m3fn, torch.int8):
        weight = packed.float() * _column(scale.float(), packed.shape[0], name)
        activation = "int8" if packed.dtype is torch.int8 else "fp8"
    else:
        raise Unsupported(f"cannot read weights stored as {packed.dtype} with {scale.dtype} scales", where=name)
    input_scale, pre_quant_scale = tensors.get(f"{name}.input_scale"), tensors.get(f"{name}.pre_quant_scale")
    return DequantizedLayer(
        name=name,
        weight=weight,
        pre_quant_scale=None if pre_quant_scale is None else pre_quant_scale.float(),
        input_scale=None if input_scale is None else float(input_scale),
        activation=None if input_scale is None else activation,  # type: ignore[arg-type]
    )


def _column(scale: torch.Tensor, rows: int, name: str) -> torch.Tensor:
    if scale.numel() not in (1, rows):
        raise IntegrityError(f"{scale.numel()} scales for {rows} rows", where=f"{name}.weight_scale")
    return scale.reshape(-1, 1)


def _dequantize_int4(packed: torch.Tensor, scale: torch.Tensor, second: torch.Tensor | None, name: str) -> torch.Tensor:
    numbers = unpack_int4(packed).float()
    rows, columns = numbers.shape
    groups = scale.numel() // rows
    if groups == 0 or scale.numel() != rows * groups or columns % groups:
        raise IntegrityError(f"{scale.numel()} scales for a {rows}x{columns} weight", where=f"{name}.weight_scale")
    weight = (numbers.view(rows, groups, -1) * scale.view(rows, groups, 1)).reshape(rows, columns)
    return weight if second is None else quantize_fp8(weight, float(second))


def plain_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that are neither packed weights nor scales."""
    layers = tuple(f"{name}." for name in quantized_layers(tensors))
    suffixes = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale")
    packed = {layer.removesuffix(".") + suffix for layer in layers for suffix in suffixes}
    return {key: value for key, value in tensors.items() if key not in packed and not is_kv_scale(key)}


def is_kv_scale(key: str) -> bool:
    """Whether a tensor's name is that of a KV cache scale."""
    return key.endswith((".k_scale", ".v_scale"))


def write_dequantized(source: Path, destination: Path) -> DequantizedFacts:
    """Write the checkpoint of `source` as an ordinary fp32 one, tokenizer and generation config included.

    `pre_quant_scale` is folded into the weights; activation and KV cache quantizers cannot be kept in an
    ordinary checkpoint and are returned.

    Raises:
        IntegrityError: The source is damaged.
        Unsupported: The source's format cannot be read.
    """
    metadata, tensors = read_quantization(source), load_tensors(source)
    layers = [dequantize_layer(tensors, name) for name in quantized_layers(tensors)]
    weights = {key: value.float() for key, value in plain_tensors(tensors).items()}
    weights |= {f"{layer.name}.weight": layer.folded_weight() for layer in layers}
    destination.mkdir(parents=True, exist_ok=True)
    contiguous = {key: value.contiguous() for key, value in weights.items()}
    save_file(contiguous, destination / "model.safetensors", {"format": "pt"})
    config = read_json(source / "config.json")
    config.pop("quantization_config", None)
    config["dtype"] = "float32"
    (destination / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    copy_companions(source, destination)
    return DequantizedFacts(
        metadata=metadata,
        layers=tuple(layer.name for layer in layers),
        folded=tuple(layer.name for layer in layers if layer.pre_quant_scale is not None),
        activation_scales={layer.name: layer.input_scale for layer in layers if layer.input_scale is not None},
        kv_scales={key: float(value) for key, value in tensors.items() if is_kv_scale(key)},
    )


def copy_companions(source: Path, destination: Path) -> list[str]:
    """Copy the tokenizer, generation config and chat template; returns the names of the copied files."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, destination / name)
    return names

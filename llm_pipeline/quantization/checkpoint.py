"""An exported, quantized checkpoint as it lies in a directory: what it says about itself, and its packed tensors.

Loading such a checkpoint through Transformers alone drops the scales without an error, and the model in
modelopt's memory differs from the exported one (the export smooths fused layers again). So the packed
tensors are the only truth:

    metadata = read_quantization(directory)          # formats, group size, excluded modules
    checkpoint = Checkpoint(directory)               # opens the files, loads nothing
    layer = checkpoint.layer("model.layers.0.mlp.up_proj")
    facts = write_dequantized(directory, plain)      # an ordinary fp32 checkpoint
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from llm_pipeline.errors import IntegrityError, Unsupported
from llm_pipeline.quantization.formats import FORMATS, ActivationFormat, LayerFormat, StoredWeight

QUANTIZATION_FILE = "hf_quant_config.json"
MIXED = "MIXED_PRECISION"
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

LAYER_SUFFIXES = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale")
"""Ends of the names of a quantized layer's tensors."""

_KINDS = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True)
class LayerScheme:
    """What a checkpoint says about one layer.

    Attributes:
        algorithm: modelopt's name.
        group_size: Input columns that share a scale; None where the format has no groups.
    """

    algorithm: str
    group_size: int | None = None

    def format(self, where: str) -> LayerFormat:
        """How it is stored.

        Raises:
            Unsupported: This package cannot read the algorithm.
        """
        if self.algorithm not in FORMATS:
            raise Unsupported(f"cannot read weights of {self.algorithm}", where=where)
        return FORMATS[self.algorithm]


@dataclass(frozen=True)
class QuantizationMetadata:
    """What an exported checkpoint says about its own quantization.

    Attributes:
        algorithm: modelopt's name (`FP8`, `W4A16_AWQ`, `MIXED_PRECISION`, ...); None for a plain checkpoint.
        group_size: Input columns that share a scale; None where the format has no groups, or each layer its own.
        kv_cache: modelopt's name of the KV cache format; None for the model's own precision.
        excluded: Module name patterns left at the model's own precision.
        producer: The tool and version that wrote it; empty for a plain checkpoint.
        layers: Of a mixed checkpoint: each quantized layer's own scheme.
    """

    algorithm: str | None
    group_size: int | None
    kv_cache: str | None
    excluded: tuple[str, ...]
    producer: str
    layers: Mapping[str, LayerScheme] = field(default_factory=dict)

    def scheme(self, layer: str) -> LayerScheme:
        """What it says about one quantized layer.

        Raises:
            IntegrityError: It does not say.
        """
        if self.algorithm not in (None, MIXED):
            return LayerScheme(str(self.algorithm), self.group_size)
        if layer not in self.layers:
            raise IntegrityError(f"{QUANTIZATION_FILE} does not say how it is quantized", where=layer)
        return self.layers[layer]


@dataclass(frozen=True)
class DequantizedLayer:
    """One quantized linear layer as ordinary numbers.

    Attributes:
        name: Module name.
        weight: fp32, [out, in], as stored (before `pre_quant_scale`).
        pre_quant_scale: fp32, [in]: the input is multiplied by it first; None without.
        input_scale: Static scale of the activation quantizer; None without one.
        activation: The activation quantizer's format; None when activations are not quantized.
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
            layers={
                name: LayerScheme(scheme["quant_algo"], scheme.get("group_size"))
                for name, scheme in (facts.get("quantized_layers") or {}).items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"not modelopt's quantization file: {error!r}", where=str(path)) from error


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint by name, each read from its file when it is asked for, straight to the device.

    Attributes:
        device: Where they are read to.

    Raises:
        IntegrityError: No safetensors file, a damaged one, or one that the index lists and the directory lacks.
    """

    def __init__(self, source: Path, device: str = "cpu") -> None:
        self.device = device
        self._files: dict[str, Any] = {}
        for file in _weight_files(source):
            try:
                opened = safe_open(source / file, framework="pt", device=device)
            except (OSError, SafetensorError) as error:
                raise IntegrityError(f"unreadable weights: {error}", where=str(source / file)) from error
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._files[key].get_tensor(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def unread(self, key: str) -> Any:
        """A tensor that is not read yet: `[...]` reads it."""
        return self._files[key].get_slice(key)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, from the file's header."""
        return tuple(self.unread(key).get_shape())

    def kind(self, key: str) -> torch.dtype:
        """A tensor's type, from the file's header.

        Raises:
            IntegrityError: No tensor of a language model has this type.
        """
        name = self.unread(key).get_dtype()
        if name not in _KINDS:
            raise IntegrityError(f"a tensor of type {name}", where=key)
        return _KINDS[name]


def _weight_files(source: Path) -> list[str]:
    index = source / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    return sorted({str(file) for file in read_json(index).get("weight_map", {}).values()})


def load_tensors(source: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the checkpoint by name, packed as stored, in memory.

    Raises:
        IntegrityError: See `StoredTensors`.
    """
    return dict(StoredTensors(source))


class Checkpoint:
    """A checkpoint's metadata and tensors; layers are dequantized one by one, where they are asked for.

    Attributes:
        metadata: What it says about itself.
        tensors: What is stored.
    """

    def __init__(self, source: Path, device: str = "cpu") -> None:
        self.metadata = read_quantization(source)
        self.tensors = StoredTensors(source, device)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the quantized layers: those with a weight scale, in the order of their names."""
        return tuple(sorted(key.removesuffix(".weight_scale") for key in self.tensors if key.endswith(".weight_scale")))

    @cached_property
    def plain(self) -> tuple[str, ...]:
        """Names of the tensors that are neither packed weights nor scales."""
        packed = {name + suffix for name in self.layers for suffix in LAYER_SUFFIXES}
        return tuple(key for key in self.tensors if key not in packed and not is_kv_scale(key))

    @cached_property
    def kv_scales(self) -> Mapping[str, float]:
        """The KV cache scales by tensor name."""
        return {key: float(self.tensors[key]) for key in sorted(filter(is_kv_scale, self.tensors))}

    def format(self, name: str) -> LayerFormat:
        """How a quantized layer is stored, by what the checkpoint says.

        Raises:
            Unsupported: The layer's format cannot be read.
            IntegrityError: It does not say.
        """
        return self.metadata.scheme(name).format(name)

    def stored(self, name: str) -> StoredWeight:
        """A quantized layer's packed weight and scales.

        Raises:
            IntegrityError: There is no weight to the scales.
        """
        if f"{name}.weight" not in self.tensors:
            raise IntegrityError("there are scales, but no weight", where=name)
        second = self.tensors.get(f"{name}.weight_scale_2")
        return StoredWeight(name, self.tensors[f"{name}.weight"], self.tensors[f"{name}.weight_scale"], second)

    def weight(self, name: str) -> torch.Tensor:
        """A quantized layer's weight in fp32, [out, in], as stored (before `pre_quant_scale`).

        Raises:
            Unsupported: The layer's format cannot be read.
            IntegrityError: Types or shapes are not those of the format that the checkpoint states.
        """
        return self.format(name).dequantize(self.stored(name))

    def smoothing(self, name: str) -> torch.Tensor | None:
        """What a layer's input is multiplied by, fp32, [in]; None without."""
        scale = self.tensors.get(f"{name}.pre_quant_scale")
        return None if scale is None else scale.float()

    def activation(self, name: str) -> tuple[ActivationFormat | None, float | None]:
        """A layer's activation quantizer and its static scale.

        Raises:
            IntegrityError: The format has a static scale and the checkpoint has none, or the other way round.
        """
        layer, scale = self.format(name), self.tensors.get(f"{name}.input_scale")
        if (scale is not None) != layer.static_activation:
            raise IntegrityError(f"{layer.algorithm} {'has no' if scale is None else 'has an'} input_scale", where=name)
        return layer.activation, None if scale is None else float(scale)

    def layer(self, name: str) -> DequantizedLayer:
        """All of a quantized layer.

        Raises:
            Unsupported: See `weight`.
            IntegrityError: See `weight` and `activation`.
        """
        activation, scale = self.activation(name)
        return DequantizedLayer(name, self.weight(name), self.smoothing(name), scale, activation)


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
    checkpoint = Checkpoint(source)
    layers = [checkpoint.layer(name) for name in checkpoint.layers]
    weights = {key: checkpoint.tensors[key].float() for key in checkpoint.plain}
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
        metadata=checkpoint.metadata,
        layers=tuple(layer.name for layer in layers),
        folded=tuple(layer.name for layer in layers if layer.pre_quant_scale is not None),
        activation_scales={layer.name: layer.input_scale for layer in layers if layer.input_scale is not None},
        kv_scales=checkpoint.kv_scales,
    )


def copy_companions(source: Path, destination: Path) -> list[str]:
    """Copy the tokenizer, generation config and chat template; returns the names of the copied files."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, destination / name)
    return names

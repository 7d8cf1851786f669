"""An exported, quantized checkpoint as it lies in a directory: what it says about itself, and its packed tensors.

Loading such a checkpoint through Transformers alone drops the scales without an error, and the model in
modelopt's memory differs from the exported one (the export smooths fused layers again). So the packed
tensors are the only truth:

    checkpoint = Checkpoint(directory)               # opens the files, loads nothing
    checkpoint.metadata                              # formats, excluded modules
    checkpoint.tensors                               # each is read from its file when it is used
    checkpoint.weight("model.layers.0.mlp.up_proj")  # dequantized
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from llm_pipeline.artifacts.checkpoint_files import read_json, read_quantization
from llm_pipeline.artifacts.tensor_formats import FORMATS, ActivationFormat, LayerFormat, StoredWeight
from llm_pipeline.base.errors import IntegrityError, Unsupported, unless_io


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint by name, each read from its file to the device only when it is used.

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
                raise unless_io(
                    error, IntegrityError(f"unreadable weights: {error}", where=str(source / file))
                ) from error
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


def _weight_files(source: Path) -> list[str]:
    index = source / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    return sorted({str(file) for file in read_json(index).get("weight_map", {}).values()})


LAYER_SUFFIXES = (".weight", ".weight_scale", ".weight_scale_2", ".input_scale", ".pre_quant_scale")
"""Ends of the names of a quantized layer's tensors."""


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
        algorithm = self.metadata.algorithm_of(name)
        if algorithm not in FORMATS:
            raise Unsupported(f"cannot read weights of {algorithm}", where=name)
        return FORMATS[algorithm]

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


def is_kv_scale(key: str) -> bool:
    """Whether a tensor's name is that of a KV cache scale."""
    return key.endswith((".k_scale", ".v_scale"))

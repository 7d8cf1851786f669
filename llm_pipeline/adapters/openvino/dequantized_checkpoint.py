"""A quantized checkpoint written as an ordinary one, for tools that read nothing else.

facts = write_dequantized(directory, plain)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from llm_pipeline.artifacts.checkpoint_files import QuantizationMetadata, copy_companions, read_json
from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint


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


def write_dequantized(source: Path, destination: Path) -> DequantizedFacts:
    """Write the checkpoint of `source` as an ordinary fp32 one, tokenizer and generation config included.

    `pre_quant_scale` is folded into the weights; activation and KV cache quantizers cannot be kept in an
    ordinary checkpoint and are returned.

    Raises:
        IntegrityError: The source is damaged.
        Unsupported: The source's format cannot be read.
    """
    checkpoint = Checkpoint(source)
    smoothing = {name: checkpoint.smoothing(name) for name in checkpoint.layers}
    scales = {name: checkpoint.activation(name)[1] for name in checkpoint.layers}
    weights = {key: checkpoint.tensors[key].float() for key in checkpoint.plain}
    for name, factors in smoothing.items():
        weight = checkpoint.weight(name)
        weights[f"{name}.weight"] = weight if factors is None else weight * factors
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
        layers=checkpoint.layers,
        folded=tuple(name for name, factors in smoothing.items() if factors is not None),
        activation_scales={name: scale for name, scale in scales.items() if scale is not None},
        kv_scales=checkpoint.kv_scales,
    )

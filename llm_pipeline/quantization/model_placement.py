"""Loading a plain checkpoint for quantization: straight to where it will be, over as many GPUs as it needs.

A model that fits on one GPU is loaded there. A larger one is spread over the visible GPUs, and what fits on none of
them stays in the host's memory, or on its disk, and passes through the GPU layer by layer (accelerate's hooks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from llm_pipeline.artifacts.checkpoint_loading import load_causal_model
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.checkpoint import read_tensors
from llm_pipeline.quantization.device_memory import free_bytes
from llm_pipeline.quantization.model_tensors import refuse_initialised

log = get_logger(__name__)

_ROOM = 1.1
"""One GPU has to have this many times the bytes of the weights free, for activations and buffers."""
_SHARE_OF_EACH = 0.8
"""Of each GPU's free memory that weights may take when a model is spread over several."""

DeviceMap = dict[str, Any]


@dataclass(frozen=True)
class Placement:
    """Where a model's weights go.

    Attributes:
        device_map: For `from_pretrained`; None for the CPU.
        max_memory: Bytes that weights may take, by GPU and for `cpu`; None when there is nothing to divide.
        offloads: Some of them have no place on a GPU.
    """

    device_map: DeviceMap | str | None = None
    max_memory: Mapping[int | str, int] | None = None
    offloads: bool = False


def place(weight_bytes: int, free_by_gpu: Mapping[int, int], free_host: int) -> Placement:
    """The CPU without GPUs, one GPU if the model fits on it, else all of them and the host.

    Args:
        weight_bytes: Of the whole model, at the precision it is loaded in.
        free_by_gpu: Free bytes of each visible GPU; empty without.
        free_host: Free bytes of the host's memory.
    """
    if not free_by_gpu:
        return Placement()
    roomiest = max(free_by_gpu, key=lambda gpu: free_by_gpu[gpu])
    if weight_bytes * _ROOM <= free_by_gpu[roomiest]:
        return Placement({"": roomiest})
    shares: dict[int | str, int] = {gpu: int(free * _SHARE_OF_EACH) for gpu, free in free_by_gpu.items()}
    offloads = weight_bytes > sum(shares.values())
    return Placement("auto", {**shares, "cpu": int(free_host * _SHARE_OF_EACH)}, offloads)


def load_plain_model(source: Path, dtype: torch.dtype, placement: Placement, offload: Path) -> Any:
    """The checkpoint as a causal language model in evaluation mode.

    No code of the checkpoint is run, and only safetensors are read.

    Args:
        source: The checkpoint's directory.
        dtype: Precision of its weights in memory.
        placement: Where they go.
        offload: Directory for weights that neither the GPUs nor the host's memory holds.

    Raises:
        IntegrityError: The checkpoint lacks tensors of the model, or its files lead out of its directory.
    """
    transformers_logging.disable_progress_bar()
    spread: dict[str, Any] = {}
    if placement.device_map is not None:
        spread = {"device_map": placement.device_map, "offload": offload}
    if placement.max_memory is not None:
        spread["max_memory"] = dict(placement.max_memory)
    model, report = load_causal_model(source, dtype=dtype, **spread)
    refuse_initialised(report, source)
    places = sorted({str(place) for place in getattr(model, "hf_device_map", {"": model.device}).values()})
    log.info("model loaded", parameters=model.num_parameters(), places=", ".join(places))
    return model.eval()


def place_here(source: Path, dtype: torch.dtype) -> Placement:
    """The placement on this machine, as its memory is now."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    free = {gpu: torch.cuda.mem_get_info(gpu)[0] for gpu in gpus}
    return place(weight_bytes(source, dtype), free, free_bytes(torch.device("cpu")))


def weight_bytes(source: Path, dtype: torch.dtype) -> int:
    """Bytes of a checkpoint's tensors once they are loaded at a precision; only headers are read.

    Raises:
        IntegrityError: As `read_tensors`.
    """
    return sum(prod(tensor.shape) * dtype.itemsize for tensor in read_tensors(source).values())


def is_offloaded(model: Any) -> bool:
    """Whether weights of the model are kept outside of the devices that compute."""
    return any(parameter.is_meta for parameter in model.parameters())


def devices(model: Any) -> list[torch.device]:
    """The devices that hold weights of the model, the first layer's first."""
    return list(dict.fromkeys(parameter.device for parameter in model.parameters() if not parameter.is_meta))

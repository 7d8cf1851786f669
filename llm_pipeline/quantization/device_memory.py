"""Device memory: whether a model's weights fit, where they go, and what running out of memory means.

A model that fits on one GPU is loaded there, a larger one is spread over the visible GPUs. One that fits on none of
them is refused before it is loaded.
"""

from __future__ import annotations

import contextlib
import gc
import re
import resource
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from llm_pipeline.base.errors import Terminal
from llm_pipeline.hub.checkpoint import read_tensors

_OUT_OF_MEMORY = re.compile(
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|can't allocate memory",
    re.IGNORECASE,
)
_ROOM = 1.1
"""One GPU has to have this many times the bytes of the weights free, for activations and buffers."""
_SHARE_OF_EACH = 0.8
"""Of each GPU's free memory that weights may take when a model is spread over several."""


class OutOfMemory(Terminal):
    """Too little device memory; the hint says what to change."""


@contextlib.contextmanager
def out_of_memory_in(
    what: str, hint: str = "use a larger GPU, more GPUs, or a machine that is not shared"
) -> Iterator[None]:
    """Say where memory has run out, and what to change.

    Raises:
        OutOfMemory: It has.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_ours = isinstance(error, torch.OutOfMemoryError | MemoryError) or _OUT_OF_MEMORY.search(str(error))
        if not is_ours:
            raise
        release_cached()
        raise OutOfMemory(f"out of memory in {what}: {error}", hint=hint) from error


def release_cached() -> None:
    """Give what nothing refers to, and what the allocator caches, back to the devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_bytes() -> dict[str, int]:
    """The most memory that was in use at a time: `peak_device_bytes` over all devices, `peak_host_bytes`."""
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "peak_device_bytes": sum(torch.cuda.max_memory_allocated(device) for device in devices),
        "peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def weight_bytes(source: Path, dtype: torch.dtype) -> int:
    """Bytes of a checkpoint's tensors once they are loaded at a precision; only headers are read.

    Raises:
        IntegrityError: As `read_tensors`.
    """
    return sum(prod(tensor.shape) * dtype.itemsize for tensor in read_tensors(source).values())


def placement(weights: int, free_by_gpu: Mapping[int, int]) -> dict[str, Any]:
    """Where weights go, as options of `from_pretrained`: one GPU if they fit there, else all of them.

    Args:
        weights: Bytes of the whole model, at the precision it is loaded in.
        free_by_gpu: Free bytes of each visible GPU; empty for the CPU.

    Raises:
        OutOfMemory: They do not fit on the GPUs.
    """
    if not free_by_gpu:
        return {}
    roomiest = max(free_by_gpu, key=lambda gpu: free_by_gpu[gpu])
    if weights * _ROOM <= free_by_gpu[roomiest]:
        return {"device_map": {"": roomiest}}
    shares = {gpu: int(free * _SHARE_OF_EACH) for gpu, free in free_by_gpu.items()}
    if weights > sum(shares.values()):
        raise OutOfMemory(
            f"the weights take {weights / 1e9:.1f} GB, and {sum(free_by_gpu.values()) / 1e9:.1f} GB are free on "
            f"{len(free_by_gpu)} GPUs",
            hint="use a larger GPU, or more GPUs",
        )
    return {"device_map": "auto", "max_memory": shares}


def placement_here(source: Path, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The placement on this machine, as its memory is now; `device` is `cpu`, or `cuda` for all visible GPUs.

    Raises:
        OutOfMemory: The weights do not fit on the GPUs.
    """
    gpus = range(torch.cuda.device_count() if device.startswith("cuda") else 0)
    return placement(weight_bytes(source, dtype), {gpu: torch.cuda.mem_get_info(gpu)[0] for gpu in gpus})

"""Device memory: where a model's weights go, how large a calibration batch fits, and what running out of it means.

A model that fits on one GPU is loaded there. A larger one is spread over the visible GPUs, and what fits on none of
them stays in the host's memory, or on its disk, and passes through the GPU layer by layer (accelerate's hooks).

One forward pass of the longest sequence is measured. From it the batch is chosen, unless one is asked for. A batch that
does not fit all the same is tried once more at half its size; the error then says what fits by that measure, too, since
a pass that failed says only how far it came.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from llm_pipeline.artifacts.checkpoint_loading import load_causal_model
from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import get_logger
from llm_pipeline.catalog.modelopt_recipes import LARGEST_BATCH_TOKENS, SHARE_USED
from llm_pipeline.hub.checkpoint import read_tensors
from llm_pipeline.quantization.model_tensors import refuse_initialised

log = get_logger(__name__)

CPU_BATCH = 32
"""Sequences a batch on a CPU, where memory is no concern and larger batches are no faster."""
_OUT_OF_MEMORY = re.compile(
    r"out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|can't allocate memory",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"tried to allocate (?P<number>[\d.]+) (?P<unit>[KMG]i?B|bytes)", re.IGNORECASE)
_ON_DEVICE = re.compile(r"GPU (?P<device>\d+)")
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_GIGABYTE = 1e9


class OutOfMemory(Terminal):
    """Too little device memory, also at half the batch; the message says what would fit."""


@dataclass(frozen=True)
class Shortage:
    """A forward pass that did not fit.

    Attributes:
        batch: Sequences of it.
        tokens: Tokens of its longest sequence.
        needed_bytes: What it takes by the measure of one sequence, at least what it had taken or asked for when it
            failed; 0 when neither is known.
        free_bytes: What was free before it.
    """

    batch: int
    tokens: int
    needed_bytes: int
    free_bytes: int

    @property
    def fitting_batch(self) -> int:
        """Sequences that fit, by proportion; 0 when not even one does."""
        if not self.needed_bytes:
            return self.batch // 2
        return min(self.batch - 1, int(self.batch * self.free_bytes * SHARE_USED / self.needed_bytes))

    def error(self, what: str) -> OutOfMemory:
        """The error that says all of it."""
        fits = self.fitting_batch
        numbers = f"{self.needed_bytes / _GIGABYTE:.1f} GB or more needed, " if self.needed_bytes else ""
        tokens = self.tokens if fits else max(1, int(self.tokens * self._ratio))
        return OutOfMemory(
            f"out of memory in {what} at {self.batch} x {self.tokens} tokens, and not enough was saved by halving the "
            f"batch: {numbers}{self.free_bytes / _GIGABYTE:.1f} GB free beside the weights; "
            f"{max(fits, 1)} x {tokens} tokens would fit",
            hint=f"set calibration.batch_size: {max(fits, 1)}"
            + ("" if fits else f" and maximum_tokens: {tokens}")
            + ", use a larger GPU, or more GPUs",
        )

    @property
    def _ratio(self) -> float:
        one = self.needed_bytes / self.batch
        return self.free_bytes * SHARE_USED / one if one else 0.5


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of the device or of the host, has run out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None


@contextlib.contextmanager
def out_of_memory_in(what: str) -> Iterator[None]:
    """Say that memory has run out where no smaller batch can help.

    Raises:
        OutOfMemory: It has.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        gc.collect()
        release_cached()
        raise OutOfMemory(
            f"out of memory in {what}: {error}", hint="use a larger GPU, more GPUs, or a machine that is not shared"
        ) from error


def free_bytes(device: torch.device) -> int:
    """What can still be allocated: free on the device, and cached by this process."""
    if device.type != "cuda":
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def release_cached() -> None:
    """Give what the allocator caches back to the devices."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak_bytes() -> dict[str, int]:
    """The most memory that was in use at a time: `peak_device_bytes` over all devices, `peak_host_bytes`."""
    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "peak_device_bytes": sum(torch.cuda.max_memory_allocated(device) for device in devices),
        "peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def sequence_bytes(forward: Callable[[], None], devices: Sequence[torch.device]) -> dict[torch.device, int]:
    """What a forward pass of one sequence takes on each GPU; nothing on a CPU.

    `forward` sends the longest sequence alone; it runs twice, and not at all on a CPU.
    """
    on_gpu = [device for device in devices if device.type == "cuda"]
    if not on_gpu:
        return {}
    forward()  # the first pass loads kernels and workspaces that later ones share
    for device in on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    before = {device: torch.cuda.memory_allocated(device) for device in on_gpu}
    forward()
    return {device: max(1, torch.cuda.max_memory_allocated(device) - before[device]) for device in on_gpu}


def choose_batch(one: Mapping[torch.device, int], growth: float, longest: int, sequences: int) -> int:
    """Sequences a batch that fit into the free memory.

    Args:
        one: What a plain forward pass of the longest sequence takes on each GPU; empty on a CPU.
        growth: What calibration needs for a sequence, by what a plain forward pass needs.
        longest: Tokens of the longest sequence.
        sequences: How many there are: more are never needed.
    """
    if not one:
        return min(CPU_BATCH, sequences)
    fitting = min(fitting_batch(free_bytes(device), taken, growth) for device, taken in one.items())
    batch = max(1, min(fitting, LARGEST_BATCH_TOKENS // longest, sequences))
    log.info("batch size chosen from free memory", batch=batch, tokens=longest)
    return batch


def fitting_batch(free: int, one: int, growth: float) -> int:
    """Sequences that fit into `free` bytes, when a plain forward pass of one takes `one` bytes."""
    return int(free * SHARE_USED / (one * growth))


def shortage(
    error: BaseException, batch: int, tokens: int, free: int, allocated: int, *, sequence: float = 0.0
) -> Shortage:
    """What a forward pass that ran out of memory would have needed.

    Args:
        error: How it failed.
        batch: Its sequences.
        tokens: Tokens of its longest one.
        free: Free bytes of the device before it.
        allocated: Bytes of the device that were allocated before it.
        sequence: Bytes that each sequence needs; 0 when that was not measured.
    """
    refused = _REFUSED.search(str(error))
    needed = int(float(refused["number"]) * _UNITS[refused["unit"][0].lower()]) if refused else 0
    if torch.cuda.is_available():
        device = _ON_DEVICE.search(str(error))
        needed += max(0, torch.cuda.max_memory_allocated(int(device["device"]) if device else 0) - allocated)
    return Shortage(batch, tokens, max(needed, int(batch * sequence)), free)


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

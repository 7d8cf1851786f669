"""What a GPU host is: its GPUs, driver and container, as an engine's manifest records them and a server must match."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import takewhile

from llm_pipeline.base.errors import Transient, Unsupported
from llm_pipeline.base.records import Frozen
from llm_pipeline.store.provenance import CONTAINER_VARIABLE

_QUERY = ("name", "compute_cap", "memory.total", "driver_version")
_TIMEOUT_SECONDS = 60
_NO_GPU = "No devices were found"
"""What it says with exit code 6 where a driver has no GPU, or a container was given none."""


class GpuFacts(Frozen):
    """One GPU of a host, as its driver describes it.

    Attributes:
        name: As the driver says it, e.g. `NVIDIA H200`.
        sm: Compute capability, e.g. `sm90`.
        memory_bytes: What the driver reports.
    """

    name: str
    sm: str
    memory_bytes: int


class HostFacts(Frozen):
    """The GPUs that this process sees, and what is around them.

    Attributes:
        driver: Version of the NVIDIA driver.
        container: Image with its digest; None outside a container of ours.
    """

    gpus: tuple[GpuFacts, ...]
    driver: str
    container: str | None = None


def read_host_facts() -> HostFacts:
    """The facts of this host, by `nvidia-smi`; `CUDA_VISIBLE_DEVICES` is obeyed, but for UUIDs.

    Raises:
        Unsupported: There is no NVIDIA driver or no GPU here.
        Transient: The driver does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Unsupported("this host has no nvidia-smi: there is no NVIDIA driver", hint="run it on a GPU host")
    command = [program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stdout", "") or "").strip() or str(error)
        if _NO_GPU in detail:
            raise _no_gpu() from error
        raise Transient(f"nvidia-smi does not answer: {detail}", hint="look at the driver: nvidia-smi -q") from error
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(answer.stdout)) if row]
    if not rows:
        raise _no_gpu()
    visible = [rows[index] for index in _visible(len(rows))]
    return HostFacts(
        gpus=tuple(_gpu(row) for row in visible),
        driver=rows[0][3],
        container=os.environ.get(CONTAINER_VARIABLE) or None,
    )


def _no_gpu() -> Unsupported:
    return Unsupported("nvidia-smi lists no GPU", hint="run it on a GPU host")


def _gpu(row: list[str]) -> GpuFacts:
    name, capability, memory, _ = row
    try:
        mebibytes = float(memory)
    except ValueError as error:
        raise Unsupported(
            f"nvidia-smi gives {memory} as the memory of {name}",
            hint="targets are for GPUs with a memory of their own: use another host",
        ) from error
    return GpuFacts(name=name, sm=f"sm{capability.replace('.', '')}", memory_bytes=int(mebibytes * 2**20))


def _visible(count: int) -> Iterator[int]:
    """The GPUs that CUDA shows: those listed before the first that there is none of, and all where UUIDs are listed."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or listed.startswith(("GPU-", "MIG-")):
        return iter(range(count))
    there = set(map(str, range(count)))
    return map(int, takewhile(there.__contains__, map(str.strip, listed.split(","))))

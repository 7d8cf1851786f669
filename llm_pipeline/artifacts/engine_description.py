"""What a GPU host is, what was built on one (`engine.json`), and which engine may be built or loaded on which host.

`engine.json` says what a build produced, what for, and what the runtime that serves it must be given.

TensorRT refuses an engine of another compute capability or version only after minutes of loading, and says nothing of
a driver that is too old; TensorRT-LLM's own files record none of it. So it is compared here, before anything is loaded.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from pydantic import Field

from llm_pipeline.artifacts.model_rules import ModelRules
from llm_pipeline.base.errors import Transient, Unsupported
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import ArtifactRef, Frozen, Metric
from llm_pipeline.catalog.tables import find_container, find_gpu
from llm_pipeline.config.target import Target
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
        hint = "targets are for GPUs with a memory of their own: use another host"
        raise Unsupported(f"nvidia-smi gives {memory} as the memory of {name}", hint=hint) from error
    return GpuFacts(name=name, sm=f"sm{capability.replace('.', '')}", memory_bytes=int(mebibytes * 2**20))


def _visible(count: int) -> Iterator[int]:
    """The GPUs that CUDA shows: those listed before the first that there is none of, and all where UUIDs are listed."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or listed.startswith(("GPU-", "MIG-")):
        return iter(range(count))
    there = set(map(str, range(count)))
    return map(int, takewhile(there.__contains__, map(str.strip, listed.split(","))))


_MEMORY_TOLERANCE = 0.06
"""Drivers report a little less than the nominal memory, and differ by version."""

_GIB = 2**30


def target_problems(target: Target, here: HostFacts) -> tuple[str, ...]:
    """Why this host is not what a GPU target describes, one line each; empty when it is.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    gpu, found = find_gpu(target.accelerator), _too_few(target, here)
    for number, one in enumerate(here.gpus[: target.ranks_per_node]):
        if one.sm != gpu.sm:
            found.append(f"GPU {number} is {one.name} ({one.sm}), {target.accelerator} is {gpu.sm}")
        elif one.memory_bytes < gpu.usable_bytes * (1 - _MEMORY_TOLERANCE):
            found.append(
                f"GPU {number} is {one.name} with {one.memory_bytes / _GIB:.0f} GiB, "
                f"{target.accelerator} has {gpu.usable_bytes / _GIB:.0f} GiB"
            )
    return tuple(found)


def _too_few(target: Target, here: HostFacts) -> list[str]:
    needed, visible = target.ranks_per_node, len(here.gpus)
    return [f"{needed} GPUs are needed, {visible} are visible"] if visible < needed else []


def driver_warning(target: Target, here: HostFacts) -> str | None:
    """A warning if the driver is older than the one that the target's container was made for; None if it is not."""
    container = find_container(target.container or "")
    if container is None:
        return None
    needed = container.oldest_driver or container.driver
    if needed is None or driver_numbers(here.driver)[:1] >= driver_numbers(needed)[:1]:
        return None
    return (
        f"driver {here.driver} is older than {needed}, which {container.image} needs without CUDA forward compatibility"
    )


def engine_problems(description: EngineDescription, here: HostFacts) -> tuple[str, ...]:
    """Why an engine must not be loaded on this host, one line each; empty when it may be."""
    built = description.host
    if built is None:
        return ()
    found, ranks = _too_few(description.target, here), description.target.ranks_per_node
    for number, (made_on, one) in enumerate(zip(built.gpus, here.gpus[:ranks], strict=False)):
        if (one.name, one.sm) != (made_on.name, made_on.sm):
            found.append(f"GPU {number} is {one.name} ({one.sm}), it was built on {made_on.name} ({made_on.sm})")
        elif one.memory_bytes < made_on.memory_bytes * (1 - _MEMORY_TOLERANCE):
            found.append(
                f"GPU {number} has {one.memory_bytes / _GIB:.0f} GiB, the build's had {made_on.memory_bytes / _GIB:.0f}"
            )
    if driver_numbers(here.driver)[:1] < driver_numbers(built.driver)[:1]:
        found.append(f"driver {here.driver} is older than the build's {built.driver}")
    if built.container and here.container and built.container != here.container:
        found.append(f"the container is {here.container}, it was built in {built.container}")
    return tuple(found)


def refuse_other_host(description: EngineDescription) -> None:
    """Refuse to load an engine on a host that it was not built for.

    Raises:
        Unsupported: The host differs; every difference is named.
        Transient: The driver does not answer.
    """
    if description.host is None:
        return
    if problems := engine_problems(description, read_host_facts()):
        raise Unsupported(
            f"the engine for {description.target.name} was not built for this host: {'; '.join(problems)}",
            hint="serve it on a host like the one it was built on, or build it for this one: nothing was loaded",
        )


def require_target_host(target: Target) -> HostFacts:
    """The facts of this host, which is what the target describes.

    Raises:
        Unsupported: It is not; every difference is named.
        Transient: The driver does not answer.
    """
    here = read_host_facts()
    if problems := target_problems(target, here):
        hint = "run the build on a host that the target describes: set its environment in the deployment"
        problem = f"this host is not a {target.name}: {'; '.join(problems)}"
        raise Unsupported(problem, where=f"targets/{target.name}.yaml", hint=hint)
    return here


def driver_numbers(version: str) -> tuple[int, ...]:
    """`590.44.01` as numbers, for comparison."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


ENGINE_FILE = "engine.json"


class EngineFacts(Frozen):
    """What a build produced.

    Attributes:
        bytes: Size of the engine's files, without `engine.json`.
        quantization: The artifact's algorithm in modelopt's words; None for a plain checkpoint.
        kv_cache: Element type of the KV cache, and of the numbers in it if that is narrower.
        context_length: Most tokens (prompt and output) that the model can attend to.
        device: The device's full name.
        versions: Runtime and compiler versions by distribution.
        seconds: Time by phase of the build.
        details: What only this builder has to say.
    """

    bytes: int
    quantization: str | None
    kv_cache: str
    context_length: int
    device: str
    versions: dict[str, str]
    seconds: dict[str, float]
    details: dict[str, Metric] = Field(default={})


class EngineDescription(Frozen):
    """The content of `engine.json`.

    Attributes:
        facts: What the build produced.
        target: What it was built for.
        runtime_properties: Properties that the runtime must be given.
        rules: How the model ends, samples and is spoken to; what serves the engine goes by them.
        host: GPUs, driver and container of the build; None for a CPU's. What serves it must match.
        checkpoint: The checkpoint that is served as it is; None where the engine holds the weights.
    """

    facts: EngineFacts
    target: Target
    runtime_properties: dict[str, str] = Field(default={})
    rules: ModelRules = ModelRules()
    host: HostFacts | None = None
    checkpoint: ArtifactRef | None = None

    def write(self, engine: Path) -> None:
        """Write the description into the engine's directory."""
        (engine / ENGINE_FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(engine: Path) -> EngineDescription:
        """Read the description of the engine in a directory.

        Raises:
            IntegrityError: It is missing or not one.
        """
        path = engine / ENGINE_FILE
        return load_record(EngineDescription, path, "not an engine")

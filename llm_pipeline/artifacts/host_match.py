"""Whether a host is one that a target can be built for, and whether an engine may be loaded on it.

TensorRT refuses an engine of another compute capability or version only after minutes of loading, and says nothing of
a driver that is too old; TensorRT-LLM's own files record none of it. So it is compared here, before anything is loaded.
"""

from __future__ import annotations

import re

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.host_facts import HostFacts, read_host_facts
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.catalog.tables import find_container, find_gpu
from llm_pipeline.config.target import Target

_MEMORY_TOLERANCE = 0.06
"""Drivers report a little less than the nominal memory, and differ by version."""

_GIB = 2**30


def target_problems(target: Target, here: HostFacts) -> tuple[str, ...]:
    """Why this host is not what a GPU target describes, one line each; empty when it is.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    gpu, found = find_gpu(target.accelerator), []
    ranks = target.ranks_per_node
    if len(here.gpus) < ranks:
        found.append(f"{ranks} GPUs are needed, {len(here.gpus)} are visible")
    for number, one in enumerate(here.gpus[:ranks]):
        if one.sm != gpu.sm:
            found.append(f"GPU {number} is {one.name} ({one.sm}), {target.accelerator} is {gpu.sm}")
        elif one.memory_bytes < gpu.usable_bytes * (1 - _MEMORY_TOLERANCE):
            found.append(
                f"GPU {number} is {one.name} with {one.memory_bytes / _GIB:.0f} GiB, "
                f"{target.accelerator} has {gpu.usable_bytes / _GIB:.0f} GiB"
            )
    return tuple(found)


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
    found = []
    ranks = description.target.ranks_per_node
    if len(here.gpus) < ranks:
        found.append(f"{ranks} GPUs are needed, {len(here.gpus)} are visible")
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
        raise Unsupported(
            f"this host is not a {target.name}: {'; '.join(problems)}",
            where=f"targets/{target.name}.yaml",
            hint="run the build on a host that the target describes: set its environment in the deployment",
        )
    return here


def driver_numbers(version: str) -> tuple[int, ...]:
    """`590.44.01` as numbers, for comparison."""
    return tuple(int(number) for number in re.findall(r"\d+", version))

"""What works on a GPU target, though perhaps not as meant: options that its engine does not read, ranks over PCIe."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter

_PAIR = 2


def pcie_reason(target: Target, tensor: int) -> str | None:
    """Why that many tensor parallel ranks would talk over PCIe; None where NVLink joins them.

    Raises:
        ConfigError: The target's accelerator is not in the GPU catalog.
    """
    nvlink = find_gpu(target.accelerator).nvlink
    if nvlink is True or tensor == 1:
        return None
    if nvlink == "bridge":
        return f"NVLink bridges join pairs of {target.accelerator} only" if tensor > _PAIR else None
    return f"{target.accelerator} has no NVLink"


def interconnect_warnings(target: Target) -> tuple[str, ...]:
    """One line, where a target's tensor parallel ranks would talk over PCIe."""
    tensor = target.parallelism.tensor
    if (reason := pcie_reason(target, tensor)) is None:
        return ()
    return (f"tensor parallelism {tensor} goes over PCIe in every layer ({reason}): a pipeline sends far less",)


def unread_warnings(target: Target) -> tuple[str, ...]:
    """One line that names them; none where there are none."""
    engine = engine_adapter(target.engine)
    unread = [
        f"{section}.{name}"
        for section, read in engine.reads.items()
        for name in _changed(getattr(target, section))
        if name not in read and f"{name.partition('.')[0]}.*" not in read
    ]
    return (f"{engine.words or target.engine} does not read {', '.join(unread)}",) if unread else ()


def _changed(options: ConfigModel) -> Iterator[str]:
    """Names of the options that are not at their defaults, with a point for each level."""
    defaults = type(options)()
    for name in type(options).model_fields:
        mine, theirs = getattr(options, name), getattr(defaults, name)
        if isinstance(mine, ConfigModel) and isinstance(theirs, ConfigModel):
            yield from (f"{name}.{below}" for below in _changed(mine))
        elif mine != theirs:
            yield name


def target_warnings(target: Target) -> tuple[str, ...]:
    """What works on a GPU target without a problem, though perhaps not as meant."""
    warnings = engine_adapter(target.engine).warnings
    return (*unread_warnings(target), *interconnect_warnings(target), *(warnings(target) if warnings else ()))

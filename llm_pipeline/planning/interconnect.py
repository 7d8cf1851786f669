"""Whether the ranks of an engine talk over NVLink: tensor parallel ones do in every layer. Pure."""

from __future__ import annotations

from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.target import Target

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

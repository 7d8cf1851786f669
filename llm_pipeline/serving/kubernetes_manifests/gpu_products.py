"""What nodes with a GPU of the catalog are labelled with.

GPU feature discovery (NVIDIA/k8s-device-plugin) takes the driver's name of the GPU, with `-` for blanks. Nodes whose
GPUs are shared or split have other labels: `gpu_product` names those.
"""

from __future__ import annotations

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.target import Target

_PRODUCTS = {
    "A10": "NVIDIA-A10",
    "A100-PCIe-80GB": "NVIDIA-A100-80GB-PCIe",
    "A100-SXM4-40GB": "NVIDIA-A100-SXM4-40GB",
    "A100-SXM4-80GB": "NVIDIA-A100-SXM4-80GB",
    "B200-SXM-180GB": "NVIDIA-B200",
    "H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3",
    "H200-SXM-141GB": "NVIDIA-H200",
    "L4": "NVIDIA-L4",
    "L40S": "NVIDIA-L40S",
}


def product_of(target: Target, named: str | None) -> str:
    """Value of the label `nvidia.com/gpu.product` for a target: the named one, or that of its GPU.

    Raises:
        ConfigError: None is named, and the GPU's is not known.
    """
    product = named or _PRODUCTS.get(target.accelerator)
    if product is None:
        raise ConfigError(
            f"the label of nodes with {target.accelerator} is not known",
            where=f"target {target.name}",
            hint="name it as gpu_product: `kubectl get nodes -L nvidia.com/gpu.product` shows it",
        )
    return product

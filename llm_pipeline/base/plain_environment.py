"""Environment variables that any process may have: of the system, Python, GPUs, caches and proxies, but no secrets.

A list of what is allowed, not of what is forbidden: nobody can name every secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

_PLAIN = frozenset(
    """
    PATH HOME USER LOGNAME SHELL HOSTNAME PWD LANG LANGUAGE TZ TERM TMPDIR TMP TEMP LD_LIBRARY_PATH LD_PRELOAD
    VIRTUAL_ENV CONDA_PREFIX HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE CC CXX NO_COLOR FORCE_COLOR HF_HOME HF_ENDPOINT
    OPAL_PREFIX LLM_PIPELINE_CONTAINER LLM_PIPELINE_RUNBOOKS
    """.split()  # noqa: SIM905 - forty quoted words are harder to read
)
_PLAIN_PREFIXES = (
    "LC_", "PYTHON", "XDG_", "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "NVSHMEM_", "UCX_", "OMPI_", "PMIX_",
    "SLURM_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "HF_HUB_", "HF_DATASETS_", "HF_XET_",
    "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "PYTORCH_", "TRITON_", "OPENVINO_", "OV_", "TLLM_", "TRTLLM_",
    "TENSORRT_", "VLLM_", "TQDM_", "COVERAGE_", "COV_CORE_",
)  # fmt: skip
_ENGINE_PREFIXES = (
    "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "NVSHMEM_", "UCX_", "OMPI_", "TORCH", "PYTORCH_", "TLLM_",
    "TRTLLM_", "VLLM_",
)  # fmt: skip
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|_KEY$|APIKEY", re.IGNORECASE)
_NOT_SECRET = frozenset({"TOKENIZERS_PARALLELISM"})


def plain_environment() -> dict[str, str]:
    """What our environment has of them: for a tool that needs no credentials."""
    return {name: value for name, value in os.environ.items() if is_plain(name)}


def engine_environment() -> dict[str, str]:
    """What our environment says of GPUs and the libraries that use them: builds and servers have the same of it."""
    return {name: value for name, value in plain_environment().items() if name.startswith(_ENGINE_PREFIXES)}


def gpu_variables(gpus: Sequence[int]) -> dict[str, str]:
    """What keeps a process to some of the host's GPUs, by their indices."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}


def is_plain(name: str) -> bool:
    """Whether a variable is one that every process may have; one with a secret is not, whatever its prefix."""
    if name in _PLAIN:
        return True
    return name.startswith(_PLAIN_PREFIXES) and (name in _NOT_SECRET or not _SECRET.search(name))

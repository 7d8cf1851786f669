"""The checks of `LLM(...)`'s arguments and of the checkpoint, by recorded facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

_SCHEMAS = Path(__file__).resolve().parents[4] / "llm_pipeline/engines/llm_args/data"
_NOT_QUANT_ALGO = ("NVFP4_AWQ", "W4A16_NVFP4", "NVFP4_SVD")
_NEEDS_DRAFT_MODEL = ("Eagle", "Eagle3", "DraftTarget", "Draft_Target")


class ValidationError(ValueError):
    """Stands for pydantic's, which is a ValueError, too."""


def is_old(version: str) -> bool:
    return version.startswith(("1.0", "1.1", "1.2"))


def check_arguments(arguments: dict[str, Any], version: str) -> None:
    name = "llm_args_1_2" if is_old(version) else "llm_args_main"
    schema = json.loads((_SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(arguments))
    if errors:
        lines = [f"{'.'.join(map(str, error.absolute_path)) or '(top)'}\n  {error.message}" for error in errors]
        raise ValidationError(f"{len(errors)} validation errors for TorchLlmArgs\n" + "\n".join(lines))
    _check_cuda_graphs(arguments.get("cuda_graph_config") or {}, version)
    _check_speculation(arguments.get("speculative_config") or {})
    experts, tensor = arguments.get("moe_expert_parallel_size") or 1, arguments.get("tensor_parallel_size", 1)
    if tensor % experts:
        raise ValidationError(f"tensor_parallel_size {tensor} is not a multiple of moe_expert_parallel_size {experts}")


def _check_cuda_graphs(graphs: dict[str, Any], version: str) -> None:
    size, sizes = graphs.get("max_batch_size") or 0, graphs.get("batch_sizes")
    if size and sizes and (is_old(version) or size != max(sizes)):
        raise ValidationError(
            "Please don't set both cuda_graph_config.batch_sizes and cuda_graph_config.max_batch_size"
        )


def _check_speculation(speculation: dict[str, Any]) -> None:
    method = speculation.get("decoding_type")
    if method not in (None, "MTP", "AUTO", "SaveState") and not speculation.get("max_draft_len"):
        raise ValidationError(f"speculative_config: {method} needs max_draft_len > 0")
    draft = speculation.get("speculative_model_dir") or speculation.get("speculative_model")
    if method in _NEEDS_DRAFT_MODEL and not draft:
        raise ValidationError(f"speculative_config: {method} needs a draft model")


def check_checkpoint(directory: Path, version: str) -> None:
    if not (directory / "config.json").is_file():
        raise OSError(f"{directory} does not appear to have a file named config.json")
    if not any(directory.glob("*.safetensors")):
        raise OSError(f"No weight files found in {directory}")
    metadata = directory / "hf_quant_config.json"
    if not metadata.is_file():
        return
    algorithm = json.loads(metadata.read_text(encoding="utf-8"))["quantization"]["quant_algo"]
    if algorithm in _NOT_QUANT_ALGO:
        raise ValueError(f"'{algorithm}' is not a valid QuantAlgo")

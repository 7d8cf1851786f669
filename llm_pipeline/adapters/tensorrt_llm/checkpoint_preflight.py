"""What a checkpoint must have for the LLM API, checked before a GPU is used.

The runtime finds most of it only after minutes of loading, or never: a quantization name that it does not know loads
as something else, and a missing chat template is an error of the first chat request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.artifacts.checkpoint_files import (
    QuantizationMetadata,
    read_json,
    read_quantization,
)
from llm_pipeline.artifacts.model_rules import TOKENIZER, read_token_files
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.catalog.tables import Column, SupportCell, find_reader_support, find_ready_format
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.recorded_schema import dialect_of
from llm_pipeline.model_facts.reader import stated_context


@dataclass(frozen=True)
class CheckpointFacts:
    """Facts of a checkpoint that the target's TensorRT-LLM can load, according to the recorded tables.

    Attributes:
        quantization: What it says of its quantization.
        context_length: Most tokens that the model can attend to; None if its config does not say.
        warnings: What may surprise when it is served.
    """

    quantization: QuantizationMetadata
    context_length: int | None
    warnings: tuple[str, ...]


def check_checkpoint(checkpoint: Path, target: Target) -> CheckpointFacts:
    """Check a Hugging Face checkpoint for the LLM API of the target's TensorRT-LLM version.

    Raises:
        IntegrityError: Its config, weights or tokenizer are missing, or its quantization metadata is damaged.
        Unsupported: That version does not read its quantization, or its LLM args are not recorded.
    """
    config = read_json(checkpoint / "config.json")
    if not config.get("architectures"):
        raise IntegrityError(
            "config.json names no architecture: the runtime picks the model's code by it",
            where=str(checkpoint),
            hint="take config.json from the hub's revision as it is",
        )
    _require_files(checkpoint)
    quantization = read_quantization(checkpoint)
    support = _reader_support(quantization, target.runtime_version or "")
    if support.value == "no":
        raise Unsupported(
            f"TensorRT-LLM {target.runtime_version} does not read {quantization.algorithm} checkpoints: {support.why}",
            where=str(checkpoint),
            hint="take a format that it reads: see llm-pipeline plan",
        )
    context_length = stated_context(config)
    unsure = (f"{quantization.algorithm}: {support.why}",) if support.value != "yes" else ()
    warnings = (*unsure, *_serving_warnings(checkpoint, target, context_length))
    return CheckpointFacts(quantization, context_length, warnings)


def _require_files(checkpoint: Path) -> None:
    if not any(checkpoint.glob("*.safetensors")):
        raise IntegrityError("the checkpoint has no safetensors weights", where=str(checkpoint))
    if not (checkpoint / TOKENIZER).is_file():
        hint = "copy the tokenizer's files beside the weights"
        raise IntegrityError(f"the checkpoint has no tokenizer: no {TOKENIZER}", where=str(checkpoint), hint=hint)


def _reader_support(quantization: QuantizationMetadata, version: str) -> SupportCell:
    dialect = dialect_of(version)
    if quantization.algorithm is None:
        return SupportCell(value="yes", why="not quantized")
    column: Column = "pytorch_1_2" if dialect.name == "1.2.x" else "pytorch_main"
    if not quantization.foreign:
        return find_reader_support(quantization.algorithm, column)
    known = find_ready_format(quantization.algorithm)
    return known.tensorrt_llm[column] if known else SupportCell(value="unknown", why="it is in none of our tables")


def _serving_warnings(checkpoint: Path, target: Target, context_length: int | None) -> Iterator[str]:
    asked = target.limits.maximum_tokens_per_request
    if context_length is not None and asked > context_length:
        yield f"limits.maximum_tokens_per_request {asked} is beyond the model's {context_length} positions"
    if not read_token_files(checkpoint).templates:
        yield "no chat template: plain prompts work, chat requests are refused"

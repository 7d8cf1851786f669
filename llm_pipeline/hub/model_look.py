"""What a source shows of a model before anything is fetched: its configuration and the headers of its weights.

    documents = read_documents(source.look("meta-llama/Llama-3.1-70B-Instruct", "main"))

A safetensors file begins with the names, types and shapes of its tensors, so a few kilobytes of each file tell the
sizes of any model.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from llm_pipeline.artifacts.checkpoint_directory import INDEX_SUFFIX
from llm_pipeline.artifacts.model_files import WEIGHTS_SUFFIX
from llm_pipeline.artifacts.safetensors_header import TensorEntry, parse_header
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import MAXIMUM_BYTES, parse
from llm_pipeline.hub.checkpoint import check_layout
from llm_pipeline.hub.source import ModelLook
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.reader import ModelDocuments

_CONFIG, _TOKENIZER, _GENERATION = "config.json", "tokenizer_config.json", "generation_config.json"
_QUANTIZATION = "hf_quant_config.json"
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_LONGEST_DOCUMENT = 10_000_000
_LONGEST_INDEX = MAXIMUM_BYTES
_AT_ONCE = 16
_PUBLISHED = "do not use this file; replace it with the published one"


def read_documents(look: ModelLook) -> ModelDocuments:
    """Read what planning needs of a model.

    Raises:
        IntegrityError: A document or a header is malformed, or index and shards contradict each other.
        SourceRefused: A file cannot be read.
        SourceUnavailable: The source does not answer any more.
    """
    weights = sorted(path for path in look.sizes if path.endswith(WEIGHTS_SUFFIX))
    jobs: list[Callable[[], Any]] = [
        partial(_object, look, _CONFIG), partial(_has_template, look), partial(_optional, look, _GENERATION)
    ]  # fmt: skip
    jobs += [partial(_tensors, look, path) for path in weights]
    indexed = sorted(path for path in look.sizes if path.endswith(INDEX_SUFFIX))
    jobs += [partial(_object, look, path, _LONGEST_INDEX) for path in indexed]
    with ThreadPoolExecutor(min(_AT_ONCE, len(jobs))) as pool:
        config, template, generation, *read = pool.map(lambda job: job(), jobs)
    headers, indexes = read[: len(weights)], dict(zip(indexed, read[len(weights) :], strict=True))
    check_layout(look.name, indexes, dict(zip(weights, headers, strict=True)))
    tensors = [
        HeldTensor(entry.name, entry.dtype, entry.shape, entry.end - entry.start)
        for header in headers
        for entry in header
    ]
    return ModelDocuments(
        config=_with_quantization(look, config),
        tensors=tensors,
        chat_template=template,
        generation=generation,
        origin=f"config.json and the headers of {len(weights)} files of {look.name}",
    )


def _with_quantization(look: ModelLook, config: dict[str, Any]) -> dict[str, Any]:
    """config.json with what modelopt says in a file of its own."""
    if _QUANTIZATION not in look.sizes or "quantization_config" in config:
        return config
    told = _object(look, _QUANTIZATION).get("quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **(told if isinstance(told, dict) else {})}}


def _object(look: ModelLook, path: str, longest: int = _LONGEST_DOCUMENT) -> dict[str, Any]:
    size = look.sizes[path]
    if size > longest:
        much = f"it has {size} bytes: more than any configuration has"
        raise IntegrityError(much, where=f"{look.name}: {path}", hint=_PUBLISHED)
    value = parse(look.read(path, 0, size), where=f"{look.name}: {path}", maximum_bytes=longest, finite=False)
    if not isinstance(value, dict):
        raise IntegrityError("not a JSON object", where=f"{look.name}: {path}", hint=_PUBLISHED)
    return value


def _optional(look: ModelLook, path: str) -> dict[str, Any]:
    return _object(look, path) if path in look.sizes else {}


def _has_template(look: ModelLook) -> bool:
    if any(path in _TEMPLATES or PurePosixPath(path).parent.name == "additional_chat_templates" for path in look.sizes):
        return True
    return _TOKENIZER in look.sizes and bool(_object(look, _TOKENIZER).get("chat_template"))


def _tensors(look: ModelLook, path: str) -> tuple[TensorEntry, ...]:
    return parse_header(f"{look.name}: {path}", look.sizes[path], partial(look.read, path))

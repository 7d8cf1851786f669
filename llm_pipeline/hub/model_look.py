"""What a source shows of a model before anything is fetched: its configuration and the headers of its weights.

    documents = read_documents(source.look("meta-llama/Llama-3.1-70B-Instruct", "main"))

A safetensors file begins with the names, types and shapes of its tensors, so a few kilobytes of each file tell the
sizes of any model.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from llm_pipeline.artifacts import model_rules
from llm_pipeline.artifacts.checkpoint_directory import INDEX_SUFFIX
from llm_pipeline.artifacts.checkpoint_files import QUANTIZATION_FILE
from llm_pipeline.artifacts.model_files import WEIGHTS_SUFFIX
from llm_pipeline.artifacts.safetensors_header import TensorEntry, parse_header
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.json_document import MAXIMUM_BYTES, parse
from llm_pipeline.hub.checkpoint import check_layout
from llm_pipeline.hub.source import ModelLook
from llm_pipeline.model_facts.grouping import HeldTensor
from llm_pipeline.model_facts.reader import ModelDocuments

_LONGEST_DOCUMENT = 10_000_000
_LONGEST = {model_rules.TOKENIZER: MAXIMUM_BYTES}
_SLOW = frozenset({"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"})
"""Tokenizers in other forms."""
_AT_ONCE = 16
_PUBLISHED = "do not use this file; replace it with the published one"


def read_documents(look: ModelLook) -> ModelDocuments:
    """Read what planning needs of a model.

    Raises:
        Unsupported: It has no tokenizer.json.
        IntegrityError: A document or a header is malformed, or index and shards contradict each other.
        SourceRefused: A file cannot be read.
        SourceUnavailable: The source does not answer any more.
    """
    weights = sorted(path for path in look.sizes if path.endswith(WEIGHTS_SUFFIX))
    small = sorted(filter(model_rules.is_token_file, look.sizes))
    indexed = sorted(path for path in look.sizes if path.endswith(INDEX_SUFFIX))
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # all of them are asked for before the first is waited for
        answers = pool.map(lambda path: _bytes(look, path, _LONGEST.get(path, _LONGEST_DOCUMENT)), small)
        headers = pool.map(partial(_tensors, look), weights)
        indexes = pool.map(lambda path: _object(look, path, MAXIMUM_BYTES), indexed)
        contents = dict(zip(small, answers, strict=True))
        entries = check_layout(
            look.name, dict(zip(indexed, indexes, strict=True)), dict(zip(weights, headers, strict=True))
        )
    tensors = [HeldTensor(entry.name, entry.dtype, entry.shape, entry.end - entry.start) for entry in entries.values()]
    files = model_rules.token_files(contents, where=look.name)
    _require_tokenizer(look, contents)
    return ModelDocuments(
        config=_with_quantization(look, {**files.get(model_rules.CONFIG)}),
        tensors=tensors,
        chat_templates=tuple(sorted(files.templates)),
        end_tokens=model_rules.rules_of(files).end_tokens,
        largest_token=files.largest_token,
        origin=f"config.json and the headers of {len(weights)} files of {look.name}",
    )


def _with_quantization(look: ModelLook, config: dict[str, Any]) -> dict[str, Any]:
    """config.json with what modelopt says in a file of its own."""
    if QUANTIZATION_FILE not in look.sizes or "quantization_config" in config:
        return config
    told = _object(look, QUANTIZATION_FILE).get("quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **(told if isinstance(told, dict) else {})}}


def _require_tokenizer(look: ModelLook, contents: Mapping[str, bytes]) -> None:
    """Refuse a model whose tokenizer the loaders would not read, or read by packages that are not installed here.

    Raises:
        Unsupported: It has no tokenizer.json.
        IntegrityError: Its tokenizer.json is none.
    """
    if model_rules.TOKENIZER not in contents:
        slow = sorted(path for path in look.sizes if path in _SLOW or path.endswith(".tiktoken"))
        raise Unsupported(
            f"the model has no tokenizer.json, only {', '.join(slow)}" if slow else "the model has no tokenizer.json",
            where=look.name,
            hint="publish a copy of it with the fast tokenizer, which AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...) writes where sentencepiece and tiktoken are installed",
        )
    where = f"{look.name}: {model_rules.TOKENIZER}"
    try:
        from tokenizers import Tokenizer
    except ImportError:  # the download has it
        return
    try:
        Tokenizer.from_str(contents[model_rules.TOKENIZER].decode())
    except Exception as error:  # the bindings raise nothing more special
        raise IntegrityError(f"not a tokenizer: {error}"[:300], where=where, hint=_PUBLISHED) from error


def _bytes(look: ModelLook, path: str, longest: int) -> bytes:
    if (size := look.sizes[path]) > longest:
        much = f"it has {size} bytes: more than any configuration has"
        raise IntegrityError(much, where=f"{look.name}: {path}", hint=_PUBLISHED)
    return look.read(path, 0, size)


def _object(look: ModelLook, path: str, longest: int = _LONGEST_DOCUMENT) -> dict[str, Any]:
    value = parse(_bytes(look, path, longest), where=f"{look.name}: {path}", maximum_bytes=longest, finite=False)
    if not isinstance(value, dict):
        raise IntegrityError("not a JSON object", where=f"{look.name}: {path}", hint=_PUBLISHED)
    return value


def _tensors(look: ModelLook, path: str) -> tuple[TensorEntry, ...]:
    return parse_header(f"{look.name}: {path}", look.sizes[path], partial(look.read, path))

"""Rules of the LLM args that a JSON schema cannot say, and marks of uncertainty in the recorded schemas.

Each rule is from the recorded schemas' `x-rules` and notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.llm_args.recorded_schema import Dialect, Node, RecordedSchema

Document = Mapping[str, Any]
_DEFAULT_TOKENS_PER_BLOCK = 32
_NEED_DRAFT_MODEL = ("Eagle", "Eagle3", "DraftTarget", "Draft_Target", "PARD", "DFlash", "DSpark")
_REFUSED_BY_PYTORCH = ("Medusa", "Lookahead")
_AT_LEAST_ONE = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "gpus_per_node",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
)
_EXCLUSIVE = (
    ("encode_only", "mm_encoder_only"),
    ("disable_mm_encoder", "mm_encoder_only"),
    ("encoder_cuda_graph_config", "encode_only"),
    ("skip_tokenizer_init", "post_processor_hook"),
    ("enable_speculative_beam_history_d2h", "sampler_force_async_worker"),
)
"""Pairs of which a file may set one, in the edition of main; `false` and null set nothing."""


class Problem(Frozen):
    """An error or an uncertainty of one key.

    Attributes:
        path: The key with those above it, dotted; empty for the whole file.
        problem: What is wrong.
        hint: What to write instead; empty where nothing is known.
        sure: False if a version later than the recorded ones may accept it.
    """

    path: str
    problem: str
    hint: str = ""
    sure: bool = True

    def __str__(self) -> str:
        place = f"{self.path}: " if self.path else ""
        return f"{place}{self.problem}" + (f" -> {self.hint}" if self.hint else "")


def broken_rules(document: Document, dialect: Dialect) -> Iterator[Problem]:
    """What a TensorRT-LLM of that dialect refuses although each key is legal by itself."""
    yield from _cuda_graphs(_mapping(document, "cuda_graph_config"), dialect)
    yield from _speculation(_mapping(document, "speculative_config"))
    yield from _sizes(document)
    yield from _expert_parallelism(document)
    yield from _pipeline_partition(document)
    for first, second in _EXCLUSIVE:
        if document.get(first) and document.get(second):
            yield Problem(path=first, problem=f"{first} and {second} exclude each other", hint="keep one")


def rule_warnings(document: Document, dialect: Dialect) -> Iterator[Problem]:
    """What it accepts, but most likely not as meant."""
    yield from _batch_sizes(document)
    yield from _uncertain_values(document, dialect)


def _cuda_graphs(graphs: Document, dialect: Dialect) -> Iterator[Problem]:
    largest, sizes = graphs.get("max_batch_size") or 0, graphs.get("batch_sizes") or ()
    if not (largest and sizes):
        return
    if dialect.name == "1.2.x":
        yield Problem(
            path="cuda_graph_config", problem="max_batch_size and batch_sizes exclude each other", hint="keep one"
        )
    elif largest != max(sizes):
        yield Problem(
            path="cuda_graph_config.max_batch_size",
            problem=f"{largest} is not the largest of batch_sizes",
            hint=f"write {max(sizes)}, or leave it out",
        )


def _speculation(speculation: Document) -> Iterator[Problem]:
    method = speculation.get("decoding_type")
    if method in _REFUSED_BY_PYTORCH:
        yield Problem(
            path="speculative_config.decoding_type", problem=f"the PyTorch backend refuses {method}", hint="use Eagle"
        )
    if speculation.get("max_draft_len") == 0:
        yield Problem(path="speculative_config.max_draft_len", problem="must be more than 0")
    if method in _NEED_DRAFT_MODEL and not _draft_model(speculation):
        yield Problem(path="speculative_config", problem=f"{method} needs a draft model", hint="add speculative_model")


def _draft_model(speculation: Document) -> object:
    return speculation.get("speculative_model_dir") or speculation.get("speculative_model")


def _sizes(document: Document) -> Iterator[Problem]:
    for key in _AT_LEAST_ONE:
        size = document.get(key)
        if isinstance(size, int) and size < 1:
            yield Problem(path=key, problem=f"{size} is less than 1")


def _pipeline_partition(document: Document) -> Iterator[Problem]:
    """`pp_partition` states how many layers each rank of the pipeline has."""
    layers, ranks = document.get("pp_partition"), document.get("pipeline_parallel_size", 1)
    if not layers:
        return
    if len(layers) != ranks:
        problem = f"{len(layers)} parts for pipeline_parallel_size {ranks}"
        yield Problem(path="pp_partition", problem=problem, hint="state the layers of each rank")
    if any(part < 1 for part in layers):
        yield Problem(path="pp_partition", problem="a rank without layers", hint="1 or more for each")


def _expert_parallelism(document: Document) -> Iterator[Problem]:
    tensor = document.get("tensor_parallel_size", 1)
    parts = {key: document.get(f"moe_{key}_parallel_size") for key in ("expert", "tensor", "cluster")}
    given = {key: size for key, size in parts.items() if isinstance(size, int) and size > 0}
    product = 1
    for size in given.values():
        product *= size
    whole = {"expert", "tensor"} <= set(given)
    if isinstance(tensor, int) and tensor > 0 and (product != tensor if whole else tensor % product):
        keys = " x ".join(f"moe_{key}_parallel_size {size}" for key, size in given.items())
        relation = "must be" if whole else "must divide"
        yield Problem(path="moe_expert_parallel_size", problem=f"{keys} {relation} tensor_parallel_size {tensor}")


def _batch_sizes(document: Document) -> Iterator[Problem]:
    sequences, tokens = document.get("max_batch_size"), document.get("max_num_tokens")
    if not isinstance(tokens, int):
        return
    if isinstance(sequences, int) and sequences > tokens:
        yield Problem(path="max_batch_size", problem=f"{sequences} sequences never fit max_num_tokens {tokens}")
    block = _mapping(document, "kv_cache_config").get("tokens_per_block", _DEFAULT_TOKENS_PER_BLOCK)
    if isinstance(block, int) and block > 0 and tokens % block:
        yield Problem(path="max_num_tokens", problem=f"{tokens} is not a multiple of tokens_per_block {block}")
    longest = document.get("max_seq_len")
    if isinstance(longest, int) and longest > tokens and not document.get("enable_chunked_prefill"):
        yield Problem(
            path="max_num_tokens",
            problem=f"prompts of more than {tokens} tokens are refused although max_seq_len is {longest}",
            hint="set enable_chunked_prefill: true",
        )


def _uncertain_values(document: Document, dialect: Dialect) -> Iterator[Problem]:
    if dialect.name == "1.2.x" and _mapping(document, "moe_config").get("backend") == "AUTO":
        yield Problem(path="moe_config.backend", problem="AUTO was seen in later 1.2 files only", hint="name a backend")
    if _mapping(document, "speculative_config").get("decoding_type") in ("DraftTarget", "Draft_Target"):
        yield from _draft_target_spelling(dialect)
    if dialect.name == "1.2.x" and _mapping(document, "kv_cache_config").get("dtype") == "nvfp4":
        yield Problem(path="kv_cache_config.dtype", problem="nvfp4 is not confirmed for 1.2.x")


def _draft_target_spelling(dialect: Dialect) -> Iterator[Problem]:
    if dialect.name == "1.2.x":
        yield Problem(
            path="speculative_config.decoding_type",
            problem="1.2.x spells it DraftTarget in one file and Draft_Target in a later one",
        )


def _mapping(document: Document, key: str) -> Document:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def uncertain_keys(document: Mapping[str, Any], schema: RecordedSchema) -> Iterator[Problem]:
    """Warnings of a legal file: keys read in a neighbouring version only, classes not read, deprecated keys."""
    yield from _of_mapping(schema.document, document, (), schema)


def _of_mapping(
    node: Node, value: Mapping[str, Any], path: tuple[str, ...], schema: RecordedSchema
) -> Iterator[Problem]:
    where = ".".join(path)
    if node.get("x-open"):
        yield Problem(path=where, problem="these keys are not recorded and were not checked")
    for mark in ("x-read", "x-seen"):
        if path and mark in node:
            yield Problem(path=where, problem=f"not read in the version itself ({node[mark]})")
    for key, given in value.items():
        if key in node.get("properties", {}):
            yield from _of_key(node["properties"][key], given, (*path, key), schema)


def _of_key(node: Node, value: Any, path: tuple[str, ...], schema: RecordedSchema) -> Iterator[Problem]:
    where = ".".join(path)
    if seen := node.get("x-seen"):
        yield Problem(path=where, problem=f"not read in the version itself ({seen})")
    if (node.get("x-status") == "deprecated" or node.get("deprecated")) and value != node.get("default"):
        yield Problem(path=where, problem="deprecated in this version")
    effective = node.get("x-effective-values") or node.get("x-known-values")
    if effective and value is not None and str(value).lower() not in {known.lower() for known in effective}:
        yield Problem(
            path=where, problem=f"{value!r} is not known to do anything", hint=f"known: {', '.join(effective)}"
        )
    if isinstance(value, Mapping) and (branch := schema.branch_for(node, dict(value))):
        yield from _of_mapping(branch, value, path, schema)

"""Checking an LLM-args file against the recorded schema of a TensorRT-LLM version, before a GPU is touched.

A key that the version does not have is an error with what to write instead. Where the recording itself is
uncertain, it is a warning, never an error; so is what may be new in a version later than the recorded ones. What no
JSON schema says is checked where a target's own options can lead to it; the rest TensorRT-LLM refuses as it loads.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.engines.llm_args.recorded_schema import (
    DIALECTS,
    Dialect,
    Node,
    RecordedSchema,
    dialect_of,
    is_later_than_recorded,
    is_older_than_recorded,
    recorded_schema,
)

Document = Mapping[str, Any]

_ALIKE = 0.5
_TOKENS_PER_BLOCK = 32
_DISCRIMINATOR = "decoding_type"
"""Where it is illegal, the union's branch is unknown, and errors of any branch would mislead."""


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


class LlmArgsCheck(Frozen):
    """Errors and uncertain keys of an LLM-args file.

    Attributes:
        version: The version of TensorRT-LLM that it was checked for.
    """

    version: str
    errors: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def require(self, where: str) -> None:
        """Refuse a file with errors.

        Raises:
            ConfigError: There are some; all are named.
        """
        if self.errors:
            listed = "; ".join(map(str, self.errors))
            raise ConfigError(f"TensorRT-LLM {self.version} refuses these LLM args: {listed}", where=where)


def check_llm_args(document: Document, version: str) -> LlmArgsCheck:
    """Check an LLM-args file.

    Args:
        document: As YAML gives it.
        version: The version of TensorRT-LLM that is to read it.

    Raises:
        Unsupported: The LLM args of that version are not recorded.
    """
    dialect, later = dialect_of(version), is_later_than_recorded(version)
    schema = recorded_schema(dialect)
    found = _leaf_errors(schema, Draft202012Validator(schema.document).iter_errors(dict(document)))
    problems = sorted((problem for error in found for problem in _problems(error, dialect)), key=lambda one: one.path)
    errors = [problem for problem in problems if problem.sure or not later]
    errors = errors or list(_broken_rules(document, dialect))
    if errors:
        return LlmArgsCheck(version=version, errors=tuple(errors))
    edition = []
    if is_older_than_recorded(version):
        edition.append(f"the LLM args were recorded for 1.2.x: {version} may lack some of them")
    if later:
        edition.append(f"the LLM args were recorded before {version}, which may have dropped some of them")
    warnings = (
        *(Problem(path="", problem=text) for text in edition),
        *problems,
        *_uncertain_keys(schema.document, document, (), schema),
        *_unwise_sizes(document),
    )
    return LlmArgsCheck(version=version, warnings=warnings)


def _leaf_errors(schema: RecordedSchema, errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """The errors, with those of a union replaced by those of the intended branch."""
    for error in errors:
        meant = None
        if error.validator in ("anyOf", "oneOf") and isinstance(error.instance, dict):
            meant = schema.branch_for(error.schema, error.instance)
        if meant is None:
            yield error
            continue
        inside = list(Draft202012Validator({**meant, "$defs": schema.document["$defs"]}).iter_errors(error.instance))
        for inner in inside:
            inner.parent = error  # it is at the place where the union stands
        yield from _leaf_errors(schema, [one for one in inside if _DISCRIMINATOR in one.path] or inside)


def _problems(error: ValidationError, dialect: Dialect) -> Iterator[Problem]:
    path = tuple(str(part) for part in error.absolute_path)
    if error.validator == "additionalProperties":
        legal = set(error.schema.get("properties", ()))
        for key in sorted(set(map(str, error.instance)) - legal):
            yield _unknown_key(path, key, legal, dialect)
    elif error.validator == "enum":
        schema, value = recorded_schema(dialect), error.instance
        known = sorted(str(one) for one in schema.legal_values(path) if one is not None)
        elsewhere = _other_edition(dialect, lambda other: value in other.legal_values(path))
        yield Problem(
            path=".".join(path),
            problem=f"{value!r} is not legal",
            hint=(f"it exists in {elsewhere} only; " if elsewhere else "") + f"legal: {', '.join(known)}",
            sure=bool(elsewhere),
        )
    else:
        yield Problem(path=".".join(path), problem=error.message)


def _unknown_key(path: tuple[str, ...], key: str, legal: Iterable[str], dialect: Dialect) -> Problem:
    """What to write instead: the same key at another place, else the keys spelled alike here.

    Neither proves a mistake: 55 of the 98 keys that upstream added after the recording look like a recorded one.
    """
    schema, dotted = recorded_schema(dialect), ".".join((*path, key))
    if other := _other_edition(dialect, lambda edition: key in edition.legal_keys(path)):
        return Problem(path=dotted, problem=f"exists in {other} only")
    if not path and (advice := schema.document["x-known-wrong-keys"].get(key)):
        return Problem(path=dotted, problem="unknown key", hint=advice)
    alike = difflib.get_close_matches(key, sorted(legal), n=2, cutoff=_ALIKE)
    hint = f"did you mean {' or '.join(alike)}?" if alike else ""
    if places := schema.places_of(key):
        hint = f"it belongs at {' or '.join(places)}"
    return Problem(path=dotted, problem="unknown key", hint=hint, sure=False)


def _other_edition(dialect: Dialect, has: Callable[[RecordedSchema], bool]) -> str:
    """The other edition, if it has what this one lacks."""
    return next((other.name for other in DIALECTS if other is not dialect and has(recorded_schema(other))), "")


def _broken_rules(document: Document, dialect: Dialect) -> Iterator[Problem]:
    """What a TensorRT-LLM of that dialect refuses although each key is legal by itself."""
    graphs = _mapping(document, "cuda_graph_config")
    largest, sizes = graphs.get("max_batch_size") or 0, graphs.get("batch_sizes") or ()
    if largest and sizes and dialect.name == "1.2.x":
        problem = "max_batch_size and batch_sizes exclude each other"
        yield Problem(path="cuda_graph_config", problem=problem, hint="keep one")
    elif largest and sizes and largest != max(sizes):
        problem, hint = f"{largest} is not the largest of batch_sizes", f"write {max(sizes)}, or leave it out"
        yield Problem(path="cuda_graph_config.max_batch_size", problem=problem, hint=hint)
    tensor = document.get("tensor_parallel_size", 1)
    parts = {key: document.get(f"moe_{key}_parallel_size") for key in ("expert", "tensor", "cluster")}
    given = {key: size for key, size in parts.items() if isinstance(size, int) and size > 0}
    product, whole = prod(given.values()), {"expert", "tensor"} <= set(given)
    if isinstance(tensor, int) and tensor > 0 and (product != tensor if whole else tensor % product):
        keys = " x ".join(f"moe_{key}_parallel_size {size}" for key, size in given.items())
        relation = "must be" if whole else "must divide"
        yield Problem(path="moe_expert_parallel_size", problem=f"{keys} {relation} tensor_parallel_size {tensor}")


def _unwise_sizes(document: Document) -> Iterator[Problem]:
    """What it accepts, but most likely not as meant."""
    sequences, tokens = document.get("max_batch_size"), document.get("max_num_tokens")
    if not isinstance(tokens, int):
        return
    if isinstance(sequences, int) and sequences > tokens:
        yield Problem(path="max_batch_size", problem=f"{sequences} sequences never fit max_num_tokens {tokens}")
    block = _mapping(document, "kv_cache_config").get("tokens_per_block", _TOKENS_PER_BLOCK)
    if isinstance(block, int) and block > 0 and tokens % block:
        yield Problem(path="max_num_tokens", problem=f"{tokens} is not a multiple of tokens_per_block {block}")
    longest = document.get("max_seq_len")
    if isinstance(longest, int) and longest > tokens and not document.get("enable_chunked_prefill"):
        yield Problem(
            path="max_num_tokens",
            problem=f"prompts of more than {tokens} tokens are refused although max_seq_len is {longest}",
            hint="set enable_chunked_prefill: true",
        )


def _mapping(document: Document, key: str) -> Document:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}


def _uncertain_keys(node: Node, document: Document, path: tuple[str, ...], schema: RecordedSchema) -> Iterator[Problem]:
    """Warnings of a legal file: keys read in a neighbouring version only, classes not read, deprecated keys."""
    if node.get("x-open"):
        yield Problem(path=".".join(path), problem="these keys are not recorded and were not checked")
    for key, value in document.items():
        known = node.get("properties", {}).get(key)
        if known is None:
            continue
        where = ".".join((*path, key))
        branch = schema.branch_for(known, dict(value)) if isinstance(value, Mapping) else None
        marks = (known.get("x-seen"), *(branch.get(mark) for mark in ("x-read", "x-seen") if branch))
        for mark in filter(None, marks):
            yield Problem(path=where, problem=f"not read in the version itself ({mark})")
        if (known.get("x-status") == "deprecated" or known.get("deprecated")) and value != known.get("default"):
            yield Problem(path=where, problem="deprecated in this version")
        effective = known.get("x-effective-values") or known.get("x-known-values")
        if effective and value is not None and str(value).lower() not in {one.lower() for one in effective}:
            hint = f"known: {', '.join(effective)}"
            yield Problem(path=where, problem=f"{value!r} is not known to do anything", hint=hint)
        if branch is not None:
            yield from _uncertain_keys(branch, value, (*path, key), schema)

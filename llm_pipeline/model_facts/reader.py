"""The facts of a model from its documents. Pure: sources supply the documents (`hub/model_look.py`).

    facts = read_facts(ModelDocuments(config=config, tensors=tensors), sizes)

The weights are judged by the headers of the files where they were read: then any architecture is known. Without them
the tensors of known architectures follow from config.json. Attention, and with it the KV cache, is described by
config.json alone; what it says of keys is held against the tensors. What it
leaves to its architecture's own class is added (`with_defaults`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.model_facts.facts import MatrixGroup, ModelFacts
from llm_pipeline.model_facts.grouping import Grouped, HeldTensor, Packing, group_tensors
from llm_pipeline.model_facts.layout import caches, expected_tensors, head_size, is_known, kv_heads
from llm_pipeline.model_facts.words import LARGEST, ConfigWords

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
}
"""By architecture of the decoder; Transformers 4.50 to 5.5 (`configuration_gemma3.py`, `configuration_mistral.py`)."""


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with what its architecture adds."""
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        return {**config, "text_config": with_defaults(nested)}
    return {**_DEFAULTS.get(str(config.get("model_type")), {}), **config}


_EXTENDING = {"yarn", "linear", "dynamic", "longrope", "su"}
"""Kinds of rope scaling that reach beyond the positions of the training; `llama3` states the extended ones."""

_STATED_EXTENDED = {"llama3", "default", "mrope", "longrope", "su"}
"""Kinds whose configurations state the positions after scaling."""

_UNBOUNDED = {"mamba", "mamba2", "falcon_mamba", "rwkv"}
"""Architectures without positions."""

_NO_LIMIT = 2**20


def stated_context(config: Mapping[str, Any]) -> int | None:
    """Positions in tokens by a config.json alone; None where it does not say."""
    try:
        return context_length(ConfigWords(with_defaults(config)))
    except ConfigError:
        return None


def context_length(words: ConfigWords) -> int:
    """Positions in tokens.

    `max_position_embeddings` counts where rope scaling says that it is extended already, or says nothing; under YaRN,
    linear and dynamic scaling of `original_max_position_embeddings` (or of the positions themselves) by `factor`, the
    scaled number counts where it is the larger one.

    Raises:
        ConfigError: No key says it, or the scaling is by no such number.
    """
    if words.optional("max_position_embeddings") is None and words.model_type in _UNBOUNDED:
        return _NO_LIMIT
    stated = words.count("max_position_embeddings")
    scaling = words.get("rope_scaling") or words.get("rope_parameters") or {}
    _check_scaling(scaling)
    return max(stated, _scaled(words, scaling))


_SCALING_NEEDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""What Transformers wants beside the kind (`modeling_rope_utils.py`, 5.5), and its models' classes do not fill in."""


def _check_scaling(scaling: Any) -> None:
    """Refuse a scaling of positions that no loader can follow.

    Raises:
        ConfigError: It is no mapping, or lacks numbers that its kind needs.
    """
    hint = "take config.json from the publisher's own revision, or publish a copy of the model where it is corrected"
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"config.json says rope_scaling {str(scaling)[:80]!r}", where="model", hint=hint)
    for name, part in scaling.items():  # several models have one for each kind of layer
        if isinstance(part, Mapping) and name.endswith("_attention"):
            _check_scaling(part)
    kind = str(scaling.get("rope_type") or scaling.get("type"))
    if missing := [name for name in _SCALING_NEEDS.get(kind, ()) if scaling.get(name) is None]:
        raise ConfigError(
            f"config.json scales positions by {kind}, and its rope_scaling or rope_parameters has no "
            f"{', '.join(missing)}",
            where="model",
            hint=hint,
        )


def _scaled(words: ConfigWords, scaling: Mapping[str, Any]) -> int:
    kind = str(scaling.get("rope_type") or scaling.get("type"))
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if kind not in _EXTENDING - _STATED_EXTENDED or type(original) is not int or not isinstance(factor, int | float):
        return 0
    largest = LARGEST["max_position_embeddings"]
    if not (0 < original <= largest and 0 <= factor <= largest / original):
        by = f"{original} positions by {factor}"[:80]
        raise words.unknown("max_position_embeddings", f"scales {by}, which gives no context")
    return int(original * factor)


_ONE_PROJECTION = {
    "gpt2", "gpt_neox", "gpt_bigcode", "falcon", "bloom", "mpt", "chatglm", "dbrx", "codegen",
    "mamba", "mamba2", "falcon_mamba",
}  # fmt: skip
"""Architectures without a matrix for keys alone."""


_UNPACKED = {"", "modelopt"}
"""How weights may be packed whose shapes are held against config.json; no release is made of others."""


@dataclass(frozen=True)
class ModelDocuments:
    """What a source gives of a model.

    Attributes:
        config: config.json.
        tensors: All tensors, from the headers of the weight files; None where those were not read.
        chat_templates: Names of the chat templates; None where the tokenizer's files were not read.
        end_tokens: Tokens that end answers; None where the files that name them were not read.
        largest_token: The token of the largest id that the tokenizer makes, with its id; None where it was not read.
        origin: Where all of this is from, in words.
    """

    config: Mapping[str, Any]
    tensors: Sequence[HeldTensor] | None = None
    chat_templates: tuple[str, ...] | None = None
    end_tokens: tuple[int, ...] | None = None
    largest_token: tuple[str, int] | None = None
    origin: str = ""


BY_HAND = ModelDocuments({}, origin="the release config (model.sizes)")
"""Nothing of the model is read."""


def read_facts(documents: ModelDocuments, sizes: Mapping[Any, Any] | None = None) -> ModelFacts:
    """What a model is.

    Args:
        documents: Of the model.
        sizes: What the release config states by hand: it counts where the documents are silent.

    Raises:
        ConfigError: Something of it is not known: the message names the field, the hint how to state it by hand; or
            config.json and the tensors contradict each other.
    """
    words = ConfigWords(with_defaults(documents.config), sizes)
    packing, found = Packing(words), caches(words)
    grouped = _grouped(documents, words, packing)
    _check_vocabulary(words.count("vocab_size"), documents)
    if packing.method in _UNPACKED:
        _check_keys(words, grouped.matrices)
    heads = words.optional("num_attention_heads") or 1
    return ModelFacts(
        model_type=words.model_type,
        architecture=_architecture(documents.config),
        hidden_size=words.count("hidden_size"),
        layers=words.count("num_hidden_layers"),
        attention_heads=heads,
        head_size=head_size(words) if words.optional("num_attention_heads") else 0,
        intermediate_size=_intermediate_size(grouped.matrices) or words.optional("intermediate_size") or 0,
        vocabulary_size=words.count("vocab_size"),
        context_length=context_length(words),
        matrices=grouped.matrices,
        caches=found,
        embedding_parameters=grouped.embedding,
        head_parameters=grouped.head,
        head=grouped.head_name,
        other_parameters=grouped.other,
        stored_bytes=sum(grouped.bytes.values()),
        stored_by_dtype=dict(grouped.bytes) if documents.tensors is not None else {},
        stored_format=packing.name or grouped.other_type,
        chat_templates=documents.chat_templates,
        end_tokens=documents.end_tokens,
        origin=documents.origin,
    )


def stated_facts(sizes: Mapping[Any, Any] | None) -> ModelFacts | None:
    """The facts that a release config states by hand; None where it does not state all that is needed."""
    return _stated_facts(tuple(sorted(sizes.items()))) if sizes else None


@cache
def _stated_facts(sizes: tuple[tuple[str, Any], ...]) -> ModelFacts | None:
    try:
        return read_facts(BY_HAND, dict(sizes))
    except ConfigError:
        return None


def _architecture(config: Mapping[str, Any]) -> str:
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _grouped(documents: ModelDocuments, words: ConfigWords, packing: Packing) -> Grouped:
    if documents.tensors is not None:
        return group_tensors(documents.tensors, words, packing)
    expected = expected_tensors(words)
    if expected is not None:
        return group_tensors(expected, words, packing)
    parameters = words.sizes.get("parameters")
    if parameters is None:
        raise words.unknown("parameters", f"is of architecture {words.model_type}, whose layers plan does not know")
    embedding = words.count("vocab_size") * words.count("hidden_size")
    return Grouped((), embedding, 0, "lm_head", max(0, parameters - embedding), {"": 2 * parameters})


def _intermediate_size(matrices: Iterable[MatrixGroup]) -> int:
    """Width of the MLP that one token passes in the widest layer: what leads back to the residual's width."""
    widths: dict[int, int] = {}
    for group in matrices:
        if group.name.rpartition(".")[2] in ("down_proj", "w2", "dense_4h_to_h", "fc2", "wo", "fc_out") or (
            group.name.endswith("mlp.c_proj")
        ):
            for layer in group.layers:
                widths[layer] = widths.get(layer, 0) + group.columns * group.active
    return max(widths.values(), default=0)


def _check_keys(words: ConfigWords, matrices: Sequence[MatrixGroup]) -> None:
    """Hold what config.json says of the KV cache against the projections to keys.

    Architectures that nobody knows here are believed where the two agree.

    Raises:
        ConfigError: They contradict each other, or there is nothing to hold it against.
    """
    if "kv_bytes_per_token" in words.sizes or words.optional("kv_lora_rank") is not None:
        return
    keys = {group.rows for group in matrices if group.name.endswith(".k_proj")}
    if not keys and not (is_known(words) or words.model_type in _ONE_PROJECTION or words.named_layers):
        raise words.unknown("kv_bytes_per_token", f"is of architecture {words.model_type}, whose cache is not known")
    if keys and (stated := kv_heads(words) * head_size(words)) not in keys:
        raise ConfigError(
            f"config.json and the weights contradict each other: num_key_value_heads x head_dim is {stated}, "
            f"k_proj has {sorted(keys)} rows",
            where="model",
            hint="state model.sizes.kv_bytes_per_token in the release config, or choose another revision",
        )


_TABLE = re.compile(r"(^|model\.|transformer\.)(embed_tokens|wte|word_embeddings|embed_in|lm_head|embed_out)\.weight")


def _check_vocabulary(rows: int, documents: ModelDocuments) -> None:
    """Hold the vocabulary of config.json against the embedding table and the tokenizer.

    Raises:
        ConfigError: The table has fewer rows, or the tokenizer makes tokens that it has no row for.
    """
    tables = [tensor for tensor in documents.tensors or () if _TABLE.fullmatch(tensor.name) and tensor.shape]
    if short := [tensor for tensor in tables if tensor.shape[0] < rows]:
        raise ConfigError(
            f"config.json and the weights contradict each other: vocab_size is {rows}, and {short[0].name} has "
            f"{short[0].shape[0]} rows",
            where="model",
            hint="choose another revision, or publish a copy of the model where vocab_size is the table's",
        )
    if documents.largest_token is not None and documents.largest_token[1] >= rows:
        token, number = documents.largest_token
        raise ConfigError(
            f"the tokenizer has more tokens than the model: {token[:40]!r} is token {number}, and the embedding table "
            f"has {rows} rows",
            where="model",
            hint="take the tokenizer of the publisher's own revision, or publish a copy of the model after "
            "resize_token_embeddings(len(tokenizer))",
        )

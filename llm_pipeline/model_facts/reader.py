"""The facts of a model from its documents. Pure: sources supply the documents (`hub/model_look.py`).

    facts = read_facts(ModelDocuments(config=config, tensors=tensors), sizes)

The weights are judged by the headers of the files where they were read: then any architecture is known. Without them
the tensors of known architectures follow from config.json. Attention, and with it the KV cache, is described by
config.json alone; what it says of keys is held against the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.model_sizes import ModelSizes
from llm_pipeline.model_facts.caches import caches, head_size, kv_heads
from llm_pipeline.model_facts.context import context_length, with_defaults
from llm_pipeline.model_facts.facts import MatrixGroup, ModelFacts
from llm_pipeline.model_facts.grouping import Grouped, HeldTensor, Packing, group_tensors
from llm_pipeline.model_facts.layout import expected_tensors, is_known
from llm_pipeline.model_facts.words import ConfigWords

_ONE_PROJECTION = {
    "gpt2", "gpt_neox", "gpt_bigcode", "falcon", "bloom", "mpt", "chatglm", "dbrx", "codegen",
    "mamba", "mamba2", "falcon_mamba",
}  # fmt: skip
"""Architectures without a matrix for keys alone."""


@dataclass(frozen=True)
class ModelDocuments:
    """What a source tells of a model.

    Attributes:
        config: config.json.
        tensors: All tensors, from the headers of the weight files; None where those were not read.
        chat_template: Whether the tokenizer brings a chat template; None where its files were not read.
        generation: generation_config.json; None where it was not read, empty where there is none.
        origin: Where all of this is from, in words.
    """

    config: Mapping[str, Any]
    tensors: Sequence[HeldTensor] | None = None
    chat_template: bool | None = None
    generation: Mapping[str, Any] | None = None
    origin: str = ""


def read_facts(documents: ModelDocuments, sizes: ModelSizes | None = None) -> ModelFacts:
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
    _check_keys(words, grouped.matrices)
    heads = words.optional("num_attention_heads") or 1
    return ModelFacts(
        model_type=words.model_type,
        architecture=str(next(iter(documents.config.get("architectures") or ()), "")),
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
        stored_format=packing.name,
        chat_template=documents.chat_template,
        end_token=_names_end_token(documents, words),
        origin=documents.origin,
    )


def _names_end_token(documents: ModelDocuments, words: ConfigWords) -> bool | None:
    if documents.generation is None:
        return None
    return documents.generation.get("eos_token_id") is not None or words.get("eos_token_id") is not None


def _grouped(documents: ModelDocuments, words: ConfigWords, packing: Packing) -> Grouped:
    if documents.tensors is not None:
        return group_tensors(documents.tensors, words, packing)
    expected = expected_tensors(words)
    if expected is not None:
        plain = (HeldTensor(name, "BF16", shape, 2 * prod(shape)) for name, shape in expected)
        grouped = group_tensors(plain, words, packing)
        return grouped._replace(bytes={"": _stored(grouped, packing)})
    parameters = words.sizes.parameters
    if parameters is None:
        raise words.unknown("parameters", f"is of architecture {words.model_type}, whose layers plan does not know")
    embedding = words.count("vocab_size") * words.count("hidden_size")
    return Grouped((), embedding, 0, "lm_head", max(0, parameters - embedding), {"": 2 * parameters})


def _stored(grouped: Grouped, packing: Packing) -> int:
    """Bytes of a checkpoint whose headers were not read."""
    plain = 2 * (grouped.embedding + grouped.head + grouped.other)
    return plain + sum(
        len(group.layers) * packing.stored_bytes(group.name, group.parameters) for group in grouped.matrices
    )


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
    if words.sizes.kv_bytes_per_token is not None or words.optional("kv_lora_rank") is not None:
        return
    keys = {group.rows for group in matrices if group.name.endswith(".k_proj")}
    if not keys and not (is_known(words) or words.model_type in _ONE_PROJECTION or words.get("layer_types")):
        raise words.unknown("kv_bytes_per_token", f"is of architecture {words.model_type}, whose cache is not known")
    if keys and (stated := kv_heads(words) * head_size(words)) not in keys:
        raise ConfigError(
            f"config.json and the weights contradict each other: num_key_value_heads x head_dim is {stated}, "
            f"k_proj has {sorted(keys)} rows",
            where="model",
            hint="state model.sizes.kv_bytes_per_token in the release config, or choose another revision",
        )

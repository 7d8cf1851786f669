"""Sizes of a model that a release config states by hand, in the words of config.json."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from llm_pipeline.config.model import ConfigModel, Tokens, Word

LARGEST_LAYERS = 10_000
LARGEST_HEADS = 2**16

Width = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=1, le=LARGEST_LAYERS)]
Heads = Annotated[int, Field(ge=1, le=LARGEST_HEADS)]
Bytes = Annotated[int, Field(ge=0, le=2**40)]
Parameters = Annotated[int, Field(ge=1, le=2**53)]


class ModelSizes(ConfigModel):
    """What `plan` takes for a fact where the model's own files do not say it, or cannot be read.

    All but the last three are keys of config.json; those follow from it where the architecture is known.

    Attributes:
        model_type: Architecture, as config.json names it.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the MLP.
        num_hidden_layers: Decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Heads of the KV cache.
        head_dim: Width of one head.
        vocab_size: Rows of the embedding table.
        max_position_embeddings: Longest context, in tokens.
        tie_word_embeddings: The output head is the embedding table.
        num_experts_per_tok: Experts that one token passes in each layer.
        parameters: All parameters, for an architecture whose layers plan cannot tell from its config.
        kv_bytes_per_token: KV cache of one token at 16 bit, over all layers.
        state_bytes_per_sequence: What a sequence takes however long it is, over all state-space layers.
    """

    model_type: Word | None = None
    hidden_size: Width | None = None
    intermediate_size: Width | None = None
    num_hidden_layers: Layers | None = None
    num_attention_heads: Heads | None = None
    num_key_value_heads: Heads | None = None
    head_dim: Width | None = None
    vocab_size: Width | None = None
    max_position_embeddings: Tokens | None = None
    tie_word_embeddings: bool | None = None
    num_experts_per_tok: Width | None = None
    parameters: Parameters | None = None
    kv_bytes_per_token: Bytes | None = None
    state_bytes_per_sequence: Bytes | None = None

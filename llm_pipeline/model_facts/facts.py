"""The facts of a model that memory, speed, cost and legality follow from. Pure data.

    facts = read_facts(documents)  # model_facts/reader.py
    facts.parameters, facts.active_parameters, facts.kv_elements_per_token, facts.context_length

Equal matrices of several layers, and equal experts of one layer, are one `MatrixGroup`: a mixture of experts has tens
of thousands of matrices of some ten kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from llm_pipeline.config.model import ConfigModel

Count = Annotated[int, Field(ge=0)]
LayerNumbers = tuple[Count, ...]


class MatrixGroup(ConfigModel):
    """Equal weight matrices inside the layers, one (or `copies`) in each of `layers`.

    Attributes:
        name: Module name with `{layer}` for the layer's number and, of experts, `{expert}` for the expert's.
        layers: The layers that have it.
        rows: Output width.
        columns: Input width: what a format's blocks must divide.
        copies: Experts of one layer; 1 for every other matrix.
        active: How many of the copies one token is multiplied with.
        kind: `linear`; `convolution` for GPT-2's transposed matrices; `fused` for experts in one tensor.
    """

    name: str
    layers: LayerNumbers
    rows: Count
    columns: Count
    copies: Count = 1
    active: Count = 1
    kind: Literal["linear", "convolution", "fused"] = "linear"

    @property
    def parameters(self) -> int:
        """Parameters in one layer, of all copies."""
        return self.rows * self.columns * self.copies

    def module(self, layer: int) -> str:
        """Name of the module in a layer; of experts, the first one's."""
        return self.name.replace("{layer}", str(layer)).replace("{expert}", "0")


class CacheGroup(ConfigModel):
    """What equal layers keep of a sequence.

    Attributes:
        layers: The layers.
        heads: Key and value heads, which ranks share; 1 for a latent that every rank holds.
        elements: Elements of one head and token, key and value together; 0 for layers without attention.
        window: Tokens that attention looks back at; None for all.
        state_bytes: What a sequence takes however long it is, in state-space and linear attention layers.
    """

    layers: LayerNumbers
    heads: Count = 1
    elements: Count = 0
    window: Count | None = None
    state_bytes: Count = 0


class ModelFacts(ConfigModel):
    """A model in numbers.

    Attributes:
        model_type: As config.json names it.
        architecture: Class of Transformers.
        hidden_size: Width of the residual stream.
        layers: Decoder layers.
        attention_heads: Query heads; the most of any layer.
        head_size: Width of one of them.
        intermediate_size: Width of the MLP that one token passes; of all its experts together.
        vocabulary_size: Rows of the embedding table.
        context_length: Longest context that the model was made for, in tokens.
        matrices: Weight matrices inside the layers that quantizers know.
        caches: What the layers keep of a sequence.
        embedding_parameters: Of the embedding table.
        head_parameters: Of the output head; 0 where it is the embedding table.
        head: Module name of the output head.
        other_parameters: Norms, biases, routers, convolutions, encoders of images: what no recipe quantizes.
        stored_bytes: Bytes of the weights as published.
        stored_by_dtype: The same by the type of elements in the files; empty where their headers were not read.
        stored_format: How they are quantized already; empty for plain ones.
        chat_templates: Names of those that the tokenizer brings; one without a name is `default`. None where its files
            were not read.
        end_tokens: Tokens that end answers, by all files that name some; None where they were not read.
        ready: The checkpoints that recipes name as their source, by recipe.
        origin: What the facts were read from.
    """

    model_type: str
    architecture: str = ""
    hidden_size: Count
    layers: Annotated[int, Field(ge=1, le=10_000)]
    attention_heads: Annotated[int, Field(ge=1, le=2**16)]
    head_size: Count
    intermediate_size: Count
    vocabulary_size: Count
    context_length: Annotated[int, Field(ge=1, le=2**32)]
    matrices: tuple[MatrixGroup, ...]
    caches: tuple[CacheGroup, ...]
    embedding_parameters: Count
    head_parameters: Count
    head: str = "lm_head"
    other_parameters: Count = 0
    stored_bytes: Count
    stored_by_dtype: dict[str, Count] = Field(default={})
    stored_format: str = ""
    chat_templates: tuple[str, ...] | None = None
    end_tokens: tuple[int, ...] | None = None
    ready: dict[str, ModelFacts] = Field(default={})
    origin: str = ""

    def __hash__(self) -> int:  # over a few numbers: equal facts have equal ones
        return hash((self.model_type, self.parameters, self.stored_bytes, self.context_length))

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the embedding table."""
        return self.head_parameters == 0

    @property
    def parameters(self) -> int:
        """All parameters, the head counted only where it is not the embedding table."""
        inside = sum(group.parameters * len(group.layers) for group in self.matrices)
        return inside + self.embedding_parameters + self.head_parameters + self.other_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: of experts, those that are chosen."""
        idle = [one.rows * one.columns * (one.copies - one.active) * len(one.layers) for one in self.matrices]
        return self.parameters - sum(idle)

    @property
    def is_mixture(self) -> bool:
        """Whether the model has experts."""
        return self.experts > 0

    @property
    def experts(self) -> int:
        """Experts of one layer; 0 for a dense model."""
        return max((group.copies for group in self.matrices if group.copies > 1), default=0)

    @property
    def key_value_heads(self) -> int:
        """Heads of the KV cache; the most of any layer, and 1 for a model without one."""
        return max((cache.heads for cache in self.caches if cache.elements), default=1)

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of the KV cache that one token adds, over all layers and heads."""
        return sum(len(cache.layers) * cache.heads * cache.elements for cache in self.caches)

    @property
    def state_bytes(self) -> int:
        """What one sequence takes however long it is, over all layers."""
        return sum(len(cache.layers) * cache.state_bytes for cache in self.caches)

    def linears(self) -> Iterator[tuple[str, MatrixGroup]]:
        """Module name and kind of the matrices inside the layers, group by group; equal experts once."""
        for group in self.matrices:
            for layer in group.layers:
                yield group.module(layer), group

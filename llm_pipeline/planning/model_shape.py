"""Shapes of Llama-like decoder models: what sizes follow from, without downloading anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from llm_pipeline.config.model import ConfigModel


class ModelShape(ConfigModel):
    """The numbers of a `config.json` that sizes follow from.

    Attributes:
        hidden_size: Width of the residual stream.
        layers: Decoder layers.
        key_value_heads: Heads of the KV cache; fewer than `attention_heads` under grouped-query attention.
        head_size: Width of one head.
        intermediate_size: Width of the gated MLP.
        maximum_positions: Longest context that the model was made for, in tokens.
        tied_embeddings: The output head is the embedding table.
        attention_biases: The projections to queries, keys and values have biases.
        head_norms: Queries and keys are normalized, head by head.
    """

    hidden_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    intermediate_size: int
    vocabulary_size: int
    maximum_positions: int
    tied_embeddings: bool = False
    attention_biases: bool = False
    head_norms: bool = False

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding table; the head has as many."""
        return self.vocabulary_size * self.hidden_size

    @property
    def vector_parameters(self) -> int:
        """Parameters of all norms, two a layer and the last one, and of all biases: what no format quantizes."""
        norms = (2 * self.layers + 1) * self.hidden_size + 2 * self.layers * self.head_size * self.head_norms
        biases = self.layers * (self.attention_heads + 2 * self.key_value_heads) * self.head_size
        return norms + biases * self.attention_biases

    @property
    def parameters(self) -> int:
        """All parameters, the head counted only where it is not the embedding table."""
        heads = 1 if self.tied_embeddings else 2
        linear = self.layers * sum(size for _, size in self._layer_linears())
        return linear + heads * self.embedding_parameters + self.vector_parameters

    def linears(self) -> Iterator[tuple[str, int]]:
        """Module name and parameters of each linear module inside the layers, as Transformers names them."""
        for layer in range(self.layers):
            for name, parameters in self._layer_linears():
                yield f"model.layers.{layer}.{name}", parameters

    def input_widths(self) -> Iterator[tuple[str, int]]:
        """Module name and input columns of each linear module inside the layers."""
        columns = {"o_proj": self.attention_heads * self.head_size, "down_proj": self.intermediate_size}
        for name, _ in self.linears():
            yield name, columns.get(name.rpartition(".")[2], self.hidden_size)

    def _layer_linears(self) -> tuple[tuple[str, int], ...]:
        queries = self.hidden_size * self.attention_heads * self.head_size
        keys = self.hidden_size * self.key_value_heads * self.head_size
        gate = self.hidden_size * self.intermediate_size
        attention = (("q_proj", queries), ("k_proj", keys), ("v_proj", keys), ("o_proj", queries))
        mlp = (("gate_proj", gate), ("up_proj", gate), ("down_proj", gate))
        return (*((f"self_attn.{n}", size) for n, size in attention), *((f"mlp.{n}", size) for n, size in mlp))


def known_shape(model_id: str) -> ModelShape | None:
    """The shape of a model that planning knows; None for every other one."""
    return _shapes().get(model_id)


@cache
def _shapes() -> dict[str, ModelShape]:
    text = files("llm_pipeline.planning").joinpath("data", "model_shapes.json").read_text(encoding="utf-8")
    shapes: dict[str, ModelShape] = {}
    for row in json.loads(text)["shapes"]:
        models = row.pop("models")
        shapes |= dict.fromkeys(models, ModelShape.model_validate(row))
    return shapes

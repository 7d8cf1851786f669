"""From tensors to groups of equal matrices, the embedding table, the head, and the rest. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Literal, NamedTuple

from llm_pipeline.model_facts.facts import MatrixGroup
from llm_pipeline.model_facts.packing import Packing
from llm_pipeline.model_facts.words import ConfigWords

_LAYER = re.compile(r"(.*?\b(?:layers|h|blocks|block)\.)(\d+)(\..+)")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_FUSED_EXPERTS = re.compile(r"\.experts\.[a-z_]+$")
_ROUTERS = re.compile(r"(\.(gate|router|shared_expert_gate|wg)$)|(\.router\.)")
_OTHER_PARTS = re.compile(r"(^|\.)(vision|visual|vit|audio|multi_modal|mm_|image|speech|patch|mtp)")
_EMBEDDINGS = re.compile(r"(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|embeddings?)$")
_MATRIX, _EXPERTS_OF_A_LAYER = 2, 3
_CONVOLUTIONS = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"}
"""Architectures whose matrices are transposed (`Conv1D` of Transformers): [columns, rows]."""

Kind = Literal["linear", "convolution", "fused"]


class HeldTensor(NamedTuple):
    """A tensor of a checkpoint: name, type of its elements, shape, and bytes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


class Grouped(NamedTuple):
    """All parameters of a model, sorted.

    Attributes:
        embedding: Parameters of the embedding table.
        head: Parameters of the output head; 0 where there is none of its own.
        head_name: Its module.
        other: Parameters that are no matrices of the layers.
        bytes: Of all tensors, scales included, by the type of their elements.
    """

    matrices: tuple[MatrixGroup, ...]
    embedding: int
    head: int
    head_name: str
    other: int
    bytes: Mapping[str, int]


class _Place(NamedTuple):
    """A kind of matrix inside the layers."""

    name: str
    rows: int
    columns: int
    kind: Kind


class _Sorted(NamedTuple):
    """What a tensor is.

    Attributes:
        place: Where it belongs, for a matrix inside the layers.
        copies: How many matrices it holds.
        parameters: How many it has; 0 for scales of packed weights.
        module: Its module, without the numbers of layers and experts.
        is_table: A matrix outside the layers with a row for each token of the vocabulary.
    """

    place: _Place | None
    copies: int
    parameters: int
    module: str
    is_table: bool


def group_tensors(tensors: Iterable[HeldTensor], words: ConfigWords, packing: Packing) -> Grouped:
    """Sort a model's tensors.

    Raises:
        ConfigError: There are experts, and it is not known how many of them one token passes.
    """
    layers, sorter = words.count("num_hidden_layers"), _Sorter(words, packing)
    places: dict[_Place, dict[int, int]] = {}
    sizes: Counter[str] = Counter()
    embedding = head = other = 0
    head_name = "lm_head"
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.bytes
        layer, found = sorter.sort(tensor)
        if found.place is not None and layer is not None and layer < layers:
            numbers = places.setdefault(found.place, {})
            numbers[layer] = numbers.get(layer, 0) + found.copies
        elif not found.is_table:
            other += found.parameters
        elif _EMBEDDINGS.search(found.module):
            embedding += found.parameters
        else:
            head, head_name = head + found.parameters, found.module
    return Grouped(_groups(places, words), embedding, head, head_name, other, sizes)


class _Sorter:
    """Sorts tensors; those that differ in the numbers of layers and experts alone are judged once."""

    def __init__(self, words: ConfigWords, packing: Packing) -> None:
        self._vocabulary, self._transposed = words.count("vocab_size"), words.model_type in _CONVOLUTIONS
        self._packing = packing
        self._known: dict[tuple[str, str, tuple[int, ...]], _Sorted] = {}

    def sort(self, tensor: HeldTensor) -> tuple[int | None, _Sorted]:
        """The layer, if it is inside one, and what the tensor is."""
        name, layer = tensor.name, None
        if (inside := _LAYER.fullmatch(name)) is not None:
            prefix, number, rest = inside.groups()
            layer = int(number)
            if ".experts." in rest:
                rest = _EXPERT.sub(".experts.{expert}.", rest)
            name = f"{prefix}{{layer}}{rest}"
        key = (name, tensor.dtype, tensor.shape)
        if (found := self._known.get(key)) is None:
            found = self._known[key] = self._judge(*key, inside=layer is not None)
        return layer, found

    def _judge(self, name: str, dtype: str, shape: tuple[int, ...], *, inside: bool) -> _Sorted:
        if self._packing.is_side(name):
            return _Sorted(None, 0, 0, name, is_table=False)
        module, shape = self._packing.unpacked(name, dtype, shape)
        place = self._place(module, shape) if inside and not name.endswith("bias") else None
        is_table = not inside and len(shape) == _MATRIX and shape[0] >= self._vocabulary
        copies = shape[0] if place is not None and place.kind == "fused" else 1
        return _Sorted(place, copies, prod(shape), module, is_table)

    def _place(self, module: str, shape: tuple[int, ...]) -> _Place | None:
        if _OTHER_PARTS.search(module) or _ROUTERS.search(module):
            return None
        if len(shape) == _EXPERTS_OF_A_LAYER and _FUSED_EXPERTS.search(module):
            return _Place(module, shape[1], shape[2], "fused")
        if len(shape) != _MATRIX or "norm" in module.rpartition(".")[2]:
            return None
        rows, columns = reversed(shape) if self._transposed else shape
        return _Place(module, rows, columns, "convolution" if self._transposed else "linear")


def _groups(places: Mapping[_Place, Mapping[int, int]], words: ConfigWords) -> tuple[MatrixGroup, ...]:
    """One group for each kind of matrix, and number of them in a layer."""
    return tuple(
        MatrixGroup(
            name=place.name,
            layers=tuple(sorted(number for number, count in numbers.items() if count == copies)),
            rows=place.rows,
            columns=place.columns,
            copies=copies,
            active=min(copies, words.count("num_experts_per_tok")) if ".experts." in place.name else copies,
            kind=place.kind,
        )
        for place, numbers in places.items()
        for copies in sorted(set(numbers.values()))
    )

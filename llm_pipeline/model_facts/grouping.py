"""From tensors to groups of equal matrices, the embedding table, the head, and the rest. Pure.

Checkpoints that are quantized already pack their weights:

* fp8 (DeepSeek-V3, Qwen3-FP8): `weight` in 8 bits with `weight_scale_inv` a block of 128 x 128.
* mxfp4 (gpt-oss): `<name>_blocks`, two elements a byte, [experts, rows, columns/32, 16], with `<name>_scales`.
* awq: `qweight` [columns, rows x bits/32] in int32; gptq: `qweight` [columns x bits/32, rows]; both with `qzeros` and
  `scales` a group.
* compressed-tensors: `weight_packed` [rows, columns x bits/32] in int32, or two FP4 elements a byte; or `weight` in 8
  bits.
* modelopt: `weight` in uint8, NVFP4 [rows, columns/2] or INT4 [rows/2, columns]; or in 8 bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Literal, NamedTuple

from llm_pipeline.model_facts.facts import MatrixGroup
from llm_pipeline.model_facts.words import ConfigWords

_INT32_BITS = 32
_SIDE = (
    ".scales", ".qzeros", ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale",
    ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale", ".input_global_scale",
    ".pre_quant_scale", ".k_scale", ".v_scale", "_scales", ".activation_scale", ".output_scale",
)  # fmt: skip
"""Ends of the names of tensors that are no parameters of the model, but belong to packed ones."""

_DESCRIPTIONS = {"quantization": "mlx", "quantization_config": "unnamed", "compression_config": "compressed-tensors"}
"""Keys of config.json that say how weights are quantized, and the method where they do not name it."""

_PLAIN_TYPES = frozenset({"F16", "BF16", "F32"})

_PACKED = (".weight_packed", ".qweight", ".weight", "_blocks")


class Packing:
    """The packing of one checkpoint, by its config.json.

    Attributes:
        method: `quant_method`; empty for plain weights.
        bits: Bits of one packed weight.
    """

    def __init__(self, words: ConfigWords) -> None:
        self._config: Mapping[str, Any] = {}
        self.method = ""
        for key, method in _DESCRIPTIONS.items():
            if given := words.get(key):
                self._config = given if isinstance(given, Mapping) else {}
                self.method = str(self._config.get("quant_method") or method)
                break
        else:
            if "quantization_config" in words.part:  # Transformers 5.5 fails on null and on {}
                self.method = "an empty quantization_config"
        self.bits = self._bits()

    @property
    def name(self) -> str:
        """The method and its format, as the tool's users call it; empty for plain weights."""
        if not self.method or self.method in ("fp8", "mxfp4"):
            return self.method
        bits = self._stated_bits()
        algorithm = self._config.get("quant_algo") or self._preset() or (f"{bits} bit" if bits else "")
        return f"{self.method} {algorithm}".strip()

    @property
    def kv_cache(self) -> str:
        """The KV cache that compressed-tensors asks for, as modelopt would call it; empty for none."""
        scheme = self._config.get("kv_cache_scheme")
        if not isinstance(scheme, Mapping):
            return ""
        return f"{'FP' if scheme.get('type') == 'float' else 'INT'}{scheme.get('num_bits')}"

    def _preset(self) -> str:
        """The preset of llm-compressor that compressed-tensors' groups are; empty where they are none."""
        groups = self._config.get("config_groups")
        if self.method != "compressed-tensors" or not isinstance(groups, Mapping):
            return ""
        found = {_preset_of(group) for group in groups.values() if isinstance(group, Mapping)}
        return found.pop() if len(found) == 1 else "mixed" if found else ""

    def is_side(self, name: str) -> bool:
        """Whether a tensor only belongs to a packed one."""
        return bool(self.method) and name.endswith(_SIDE)

    def unpacked(self, name: str, dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """A tensor as it would be unpacked: its module, and its shape.

        Of experts in one tensor the module is the parameter itself, and its shape has them before rows and columns.
        """
        module = next((name.removesuffix(end) for end in _PACKED if name.endswith(end)), name)
        if name.endswith("_blocks") and len(shape) == 4:  # noqa: PLR2004 - experts, rows, blocks, bytes of a block
            return module, (shape[0], shape[1], shape[2] * shape[3] * 2)
        if len(shape) != 2 or dtype not in ("I32", "U8", "F4"):  # noqa: PLR2004 - no packed matrix
            return module, shape
        rows, columns = shape
        if name.endswith(".qweight"):
            held = (rows if self.method == "gptq" else columns) * _INT32_BITS // self.bits  # 32 of 3 bits in 3 integers
            return module, (columns, held) if self.method == "gptq" else (held, rows)
        if dtype == "I32":
            return module, (rows, columns * _INT32_BITS // self.bits)
        if dtype == "U8" and self.method == "modelopt" and "AWQ" in str(self._config.get("quant_algo")):
            return module, (2 * rows, columns)
        return module, (rows, 2 * columns) if dtype == "U8" and self.method else shape

    def _bits(self) -> int:
        algorithm = str(self._config.get("quant_algo") or "")
        default = 4 if self.method == "mxfp4" or "FP4" in algorithm or "W4" in algorithm else 8
        return self._stated_bits() or default

    def _stated_bits(self) -> int | None:
        if self._config.get("load_in_4bit") is True:
            return 4
        stated = self._config.get("bits") or self._config.get("w_bit")
        if type(stated) is int and 0 < stated <= _INT32_BITS:
            return stated
        groups = self._config.get("config_groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
            if type(bits) is int and 0 < bits <= _INT32_BITS:
                return bits
        return None


def _preset_of(group: Mapping[str, Any]) -> str:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        return ""
    bits, kind, strategy = weights.get("num_bits"), weights.get("type", "int"), weights.get("strategy")
    if kind == "float" and bits == 4:  # noqa: PLR2004 - FP4
        name = "MXFP4" if weights.get("group_size") == 32 else "NVFP4"  # noqa: PLR2004 - the blocks of each
        return name if inputs else f"{name}A16"
    if kind == "float":
        dynamic = isinstance(inputs, Mapping) and inputs.get("dynamic")
        suffix = "_BLOCK" if strategy == "block" else "_DYNAMIC" if dynamic and strategy == "channel" else ""
        return f"FP8{suffix}" if inputs else "FP8A16"
    if not isinstance(inputs, Mapping):
        return f"W{bits}A16"
    return f"W{bits}A{inputs.get('num_bits')}{'_FP8' if inputs.get('type') == 'float' else ''}"


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
        other_type: Of the matrices inside the layers that are of none of the plain types; empty where all are.
    """

    matrices: tuple[MatrixGroup, ...]
    embedding: int
    head: int
    head_name: str
    other: int
    bytes: Mapping[str, int]
    other_type: str = ""


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
    other_type = ""
    embedding = head = other = 0
    head_name = "lm_head"
    for tensor in tensors:
        sizes[tensor.dtype] += tensor.bytes
        layer, found = sorter.sort(tensor)
        if found.place is not None and layer is not None and layer < layers:
            numbers = places.setdefault(found.place, {})
            numbers[layer] = numbers.get(layer, 0) + found.copies
            other_type = other_type or ("" if tensor.dtype in _PLAIN_TYPES else tensor.dtype)
        elif not found.is_table:
            other += found.parameters
        elif _EMBEDDINGS.search(found.module):
            embedding += found.parameters
        else:
            head, head_name = head + found.parameters, found.module
    return Grouped(_groups(places, words), embedding, head, head_name, other, sizes, other_type)


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

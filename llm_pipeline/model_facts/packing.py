"""How checkpoints that are quantized already pack their weights: which tensors hold them, and what of. Pure.

* fp8 (DeepSeek-V3, Qwen3-FP8): `weight` in 8 bits with `weight_scale_inv` a block of 128 x 128.
* mxfp4 (gpt-oss): `<name>_blocks`, two elements a byte, [experts, rows, columns/32, 16], with `<name>_scales`.
* awq: `qweight` [columns, rows x bits/32] in int32; gptq: `qweight` [columns x bits/32, rows]; both with `qzeros` and
  `scales` a group.
* compressed-tensors: `weight_packed` [rows, columns x bits/32] in int32, or two FP4 elements a byte; or `weight` in 8
  bits.
* modelopt: `weight` in uint8, NVFP4 [rows, columns/2] or INT4 [rows/2, columns]; or in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from llm_pipeline.model_facts.words import ConfigWords

_INT32_BITS = 32
_SIDE = (
    ".scales", ".qzeros", ".g_idx", ".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".input_scale",
    ".weight_shape", ".weight_zero_point", ".weight_g_idx", ".weight_global_scale", ".input_global_scale",
    ".pre_quant_scale", ".k_scale", ".v_scale", "_scales", ".activation_scale", ".output_scale",
)  # fmt: skip
"""Ends of the names of tensors that are no parameters of the model, but belong to packed ones."""

_PACKED = (".weight_packed", ".qweight", ".weight", "_blocks")


class Unpacked(NamedTuple):
    """A tensor as it would be unpacked.

    Attributes:
        module: Its module: for experts in one tensor, the parameter's own name.
        shape: Rows and columns (and experts before them) once unpacked; any shape for what is no matrix.
    """

    module: str
    shape: tuple[int, ...]


class Packing:
    """The packing of one checkpoint, by its config.json.

    Attributes:
        method: `quant_method`; empty for plain weights.
        bits: Bits of one packed weight.
    """

    def __init__(self, words: ConfigWords) -> None:
        given = words.get("quantization_config") or words.get("compression_config")
        self._config: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        self.method = str(self._config.get("quant_method") or ("compressed-tensors" if self._config else ""))
        self.bits = self._bits()

    @property
    def name(self) -> str:
        """The format in words; empty for plain weights."""
        if not self.method or self.method in ("fp8", "mxfp4"):
            return self.method
        algorithm = self._config.get("quant_algo") or f"{self.bits} bit"
        return f"{self.method} {algorithm}"

    def is_side(self, name: str) -> bool:
        """Whether a tensor only belongs to a packed one."""
        return bool(self.method) and name.endswith(_SIDE)

    def unpacked(self, name: str, dtype: str, shape: tuple[int, ...]) -> Unpacked:
        """What a tensor holds."""
        module = next((name.removesuffix(end) for end in _PACKED if name.endswith(end)), name)
        if name.endswith("_blocks") and len(shape) == 4:  # noqa: PLR2004 - experts, rows, blocks, bytes of a block
            return Unpacked(module, (shape[0], shape[1], shape[2] * shape[3] * 2))
        if len(shape) != 2 or dtype not in ("I32", "U8", "F4"):  # noqa: PLR2004 - no packed matrix
            return Unpacked(module, shape)
        rows, columns = shape
        if name.endswith(".qweight"):
            inside = _INT32_BITS // self.bits
            return Unpacked(module, (columns, rows * inside) if self.method == "gptq" else (columns * inside, rows))
        if dtype == "I32":
            return Unpacked(module, (rows, columns * _INT32_BITS // self.bits))
        if dtype == "U8" and self.method == "modelopt" and "AWQ" in str(self._config.get("quant_algo")):
            return Unpacked(module, (2 * rows, columns))
        return Unpacked(module, (rows, 2 * columns) if dtype == "U8" and self.method else shape)

    def stored_bytes(self, module: str, parameters: int) -> int:
        """Bytes of a matrix that was not read; those that the config leaves out have 16 bits."""
        if not self.method or self._is_left_out(module):
            return 2 * parameters
        groups = {"fp8": (128 * 128, 4.0), "mxfp4": (32, 1.0)}
        group = self._config.get("group_size")
        size, scale = groups.get(self.method, (group if type(group) is int and group > 0 else 128, 2 + self.bits / 8))
        return int(parameters * (self.bits / 8 + scale / size))

    def _is_left_out(self, module: str) -> bool:
        """Whether the quantizer left a module as it was; mxfp4 checkpoints hold only experts in it."""
        left: Sequence[Any] = self._config.get("modules_to_not_convert") or self._config.get("ignore") or ()
        if self.method == "mxfp4" and ".experts." not in module:
            return True
        return any(fnmatchcase(module, str(name)) or str(name) in module for name in left)

    def _bits(self) -> int:
        stated = self._config.get("bits") or self._config.get("w_bit")
        if type(stated) is int and 0 < stated <= _INT32_BITS:
            return stated
        for group in (self._config.get("config_groups") or {}).values():
            bits = (group.get("weights") or {}).get("num_bits") if isinstance(group, Mapping) else None
            if type(bits) is int and 0 < bits <= _INT32_BITS:
                return bits
        algorithm = str(self._config.get("quant_algo") or "")
        return 4 if self.method == "mxfp4" or "FP4" in algorithm or "W4" in algorithm else 8

"""Puts a quantized checkpoint's own numbers into a traced OpenVINO model, so that nothing is quantized twice.

The trace of the dequantized checkpoint is the template: norms, attention and residuals are right in it, and each
linear layer is a fp32 constant that feeds a MatMul. For every quantized layer, the constant becomes the packed
weight (i4, i8 or f8e4m3) with its scale, each layer in its own format, `pre_quant_scale` becomes a multiplication
of the MatMul's input, and the activation quantizer becomes nodes behind it; KV cache quantizers go where the cache
grows. The graph computes what the checkpoint says. Four-bit floating point formats are refused: no CPU computes them.

An OpenVINO constant made from a tensor shares its memory by default without keeping it alive; a freed array then
means garbage weights and no error. Constants here therefore always copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import openvino as ov
import torch
from openvino import opset15 as op

from llm_pipeline.artifacts.quantized_checkpoint import Checkpoint
from llm_pipeline.artifacts.tensor_formats import FP8_MAXIMUM, SQUARE, ActivationFormat, unpack_int4
from llm_pipeline.base.errors import Unsupported

_TRACE_PREFIX = "self."
_LAYER_NUMBER = re.compile(r"\.(\d+)\.")
_HALF_TYPES = {torch.float16: ov.Type.f16, torch.bfloat16: ov.Type.bf16}
_SPLITTER = 2.0**20 + 1  # keeps 24 - 20 significant bits of a float32
_SMALLEST_FP8 = 2.0**-9
_SMALLEST_NORMAL_FP8 = 2.0**-6


class NativeWeights:
    """A traced model whose linear layers are replaced by a checkpoint's packed ones.

    Attributes:
        model: The traced model, changed in place.
        layers: Layers replaced so far.
        activation_quantizers: Layers among them whose input is quantized.
        kv_quantizers: Key and value caches whose new entries are quantized.
    """

    def __init__(self, model: ov.Model, checkpoint: Checkpoint) -> None:
        self.model = model
        self.layers: list[str] = []
        self.activation_quantizers: list[str] = []
        self.kv_quantizers: list[str] = []
        self._checkpoint = checkpoint

    def install(self) -> None:
        """Replace every quantized layer, and put the other weights back into their stored precision.

        Raises:
            Unsupported: A quantized layer is not a plain MatMul in the traced graph, or its storage is unknown.
        """
        nodes = (node for node in self.model.get_ordered_ops() if node.get_type_name() == "Constant")
        constants = {node.get_friendly_name().removeprefix(_TRACE_PREFIX): node for node in nodes}
        for name in self._checkpoint.layers:
            constant = constants.get(f"{name}.weight")
            if constant is None:
                problem = "the traced graph has no weight of this name, so the native weights cannot be put in"
                raise Unsupported(problem, where=name, hint="use weight_format: fp32 for this architecture")
            self._replace_layer(name, constant)
        for name in filter(constants.__contains__, self._checkpoint.plain):
            tensor = self._checkpoint.tensors[name]
            if tensor.dtype in _HALF_TYPES:
                half = _packed_constant(_bytes_as(tensor, torch.int16), tensor.shape, _HALF_TYPES[tensor.dtype])
                constants[name].output(0).replace(op.convert(half, "f32").output(0))
        self._quantize_kv_cache()
        self.model.validate_nodes_and_infer_types()

    def _replace_layer(self, name: str, constant: ov.Node) -> None:
        activation, scale = self._checkpoint.activation(name)
        weight = self._weight(name)
        for target in list(constant.output(0).get_target_inputs()):
            matmul = target.get_node()
            if matmul.get_type_name() != "MatMul":
                raise Unsupported(f"its weight feeds a {matmul.get_type_name()}, not a MatMul", where=name)
            source, smoothing = matmul.input_value(0), self._checkpoint.smoothing(name)
            if smoothing is not None:
                source = op.multiply(source, _float32(smoothing.reshape(1, 1, -1).numpy())).output(0)
            matmul.input(0).replace_source_output(_quantized_input(source, activation, scale, name))
        constant.output(0).replace(weight.output(0))
        self.layers.append(name)
        if activation is not None:
            self.activation_quantizers.append(name)

    def _quantize_kv_cache(self) -> None:
        """Round what enters the KV cache to the checkpoint's e4m3 grid; the cache itself stays in f32."""
        states = {sink.get_variable_id(): sink for sink in self.model.get_sinks() if sink.get_type_name() == "Assign"}
        if self._checkpoint.metadata.kv_cache not in (None, "FP8"):
            raise Unsupported(f"no CPU engine has a KV cache of {self._checkpoint.metadata.kv_cache}")
        for name, scale in self._checkpoint.kv_scales.items():
            kind, layer = ("key" if name.endswith("k_scale") else "value"), _LAYER_NUMBER.search(name)
            variable = f"past_key_values.{layer[1]}.{kind}present.{layer[1]}.{kind}" if layer else ""
            append = states[variable].input_value(0).get_node() if variable in states else None
            if append is None or append.get_type_name() != "Concat":
                problem = "the traced graph has no KV cache of this name, so its quantizer cannot be put in"
                raise Unsupported(problem, where=name)
            new = append.input_value(1)
            append.input(1).replace_source_output(_round_to_fp8(new, _float32(scale)).output(0))
            self.kv_quantizers.append(name)

    def _weight(self, name: str) -> ov.Node:
        """The fp32 weight as an expression over the packed constant and its scales."""
        layer, tensors = self._checkpoint.format(name), self._checkpoint.tensors
        packed, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"].float().numpy()
        if layer.packing == "columns":
            hint = "take an 8-bit format or AWQ"
            raise Unsupported(f"no CPU engine computes {layer.algorithm}", where=name, hint=hint)
        if layer.packing == "rows" and not layer.second_scale:
            return _int4_weight(packed, scale)
        kind, factors = ov.Type.f8e4m3, scale.reshape(-1, 1)
        if layer.second_scale:  # W4A8: the numbers that its kernel computes with, rounded to e4m3 here once
            factors = tensors[f"{name}.weight_scale_2"].float().numpy()
            packed = (self._checkpoint.weight(name) / float(factors)).to(torch.float8_e4m3fn)
        elif packed.dtype is torch.int8:
            kind = ov.Type.i8
        if layer.sharing == "square":  # the blocks of the last row and column may be cut off
            rows, columns = packed.shape
            blocks = scale.reshape(-(-rows // SQUARE), -1)
            factors = blocks.repeat(SQUARE, 0)[:rows].repeat(SQUARE, 1)[:, :columns]
        constant = _packed_constant(_bytes_as(packed, torch.uint8), packed.shape, kind)
        return op.multiply(op.convert(constant, "f32"), _float32(factors))


def _int4_weight(packed: torch.Tensor, scale: npt.NDArray[np.float32]) -> ov.Node:
    numbers = unpack_int4(packed).numpy()
    rows, columns = numbers.shape
    groups = scale.size // rows
    shape = (rows, groups, columns // groups) if groups > 1 else (rows, columns)
    # OpenVINO's i4 layout: row-major, the earlier number in the low nibble.
    nibbles = (numbers.reshape(-1) & 0xF).astype(np.uint8)
    pairs = np.bitwise_or(nibbles[0::2], np.left_shift(nibbles[1::2], 4), dtype=np.uint8)
    constant = _packed_constant(pairs, shape, ov.Type.i4)
    weight = op.multiply(op.convert(constant, "f32"), _float32(scale.reshape((*shape[:-1], 1))))
    if groups == 1:
        return weight
    return op.reshape(weight, op.constant(np.array([rows, columns], np.int64)), special_zero=False)


def _quantized_input(
    source: ov.Output, activation: ActivationFormat | None, scale: float | None, name: str
) -> ov.Output:
    """A layer's input as its activation quantizer leaves it."""
    if activation is None:
        return source
    if activation == "fp8_per_token":
        # For each token the scale of its largest magnitude, as `quantization.activations` defines it.
        largest = op.reduce_max(op.abs(source), op.constant(np.array([-1], np.int64)), keep_dims=True)
        of_token = op.multiply(largest, _float32(1 / FP8_MAXIMUM))
        of_token = op.select(op.greater(largest, _float32(0.0)), of_token, _float32(1.0))
        return _round_to_fp8(source, of_token).output(0)
    if activation not in ("fp8", "int8") or scale is None:
        raise Unsupported(f"no CPU engine quantizes activations to {activation}", where=name)
    return (_round_to_int8(source, scale) if activation == "int8" else _round_to_fp8(source, _float32(scale))).output(0)


def _packed_constant(array: npt.NDArray[np.generic], shape: Sequence[int], kind: ov.Type) -> ov.Node:
    return op.constant(ov.Tensor(array, list(shape), kind), shared_memory=False)


def _bytes_as(tensor: torch.Tensor, kind: torch.dtype) -> npt.NDArray[np.generic]:
    array: npt.NDArray[np.generic] = tensor.contiguous().view(kind).numpy()
    return array


def _float32(value: float | npt.NDArray[np.float32]) -> ov.Node:
    return op.constant(np.asarray(value, np.float32))


def _round_to_int8(source: ov.Output, scale: float) -> ov.Node:
    """The saturating int8 quantizer at a static scale, as `quantization.activations.quantize_int8` defines it.

    FakeQuantize would round at slightly other places, because it maps its range before it rounds.
    """
    steps = op.clamp(op.round(op.divide(source, _float32(scale)), "half_to_even"), -128.0, 127.0)
    return op.multiply(steps, _float32(scale))


def _round_to_fp8(source: ov.Output, scale: ov.Node) -> ov.Node:
    """The saturating e4m3 quantizer at a scale, as `quantization.activations.quantize_fp8` defines it.

    OpenVINO's own conversion to f8e4m3 goes through f16 and so rounds twice: some 0.2 % of activations land on the
    wrong side. Here normal numbers are rounded to four significant bits by Veltkamp's splitting (Dekker, "A
    floating-point technique for extending the available precision", 1971), subnormal ones to multiples of 2**-9.
    """
    scaled = op.clamp(op.divide(source, scale), -FP8_MAXIMUM, FP8_MAXIMUM)
    spread = op.multiply(scaled, _float32(_SPLITTER))
    normal = op.subtract(spread, op.subtract(spread, scaled))
    steps = op.round(op.multiply(scaled, _float32(1 / _SMALLEST_FP8)), "half_to_even")
    subnormal = op.multiply(steps, _float32(_SMALLEST_FP8))
    is_subnormal = op.less(op.abs(scaled), _float32(_SMALLEST_NORMAL_FP8))
    return op.multiply(op.select(is_subnormal, subnormal, normal), scale)

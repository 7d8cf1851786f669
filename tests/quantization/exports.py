"""Real exports of a small random llama in every format, made by modelopt on a CPU.

modelopt's block quantizers of four bits are CUDA code when they run; exporting them is not. AWQ needs them to run, so
that it gets the same arithmetic in torch.
"""

from __future__ import annotations

import contextlib
import io
from unittest import mock

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from transformers import LlamaForCausalLM

from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.modelopt_configs import modelopt_config

torch.set_num_threads(1)  # several threads only wait for each other in so small a model

FORMATS = (
    "fp8", "fp8_per_channel_token", "fp8_block", "int8_smoothquant", "int8_weight_only", "int4_blockwise", "int4_awq",
    "w4a8_awq", "nvfp4", "nvfp4_awq", "mxfp4",
)  # fmt: skip
MIXED = {
    "layers.0.self_attn.[qkv]_proj": "FP8_DEFAULT_CFG",
    "layers.0.self_attn.o_proj": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "layers.0.mlp": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "layers.1.self_attn.[qkv]_proj": "INT8_DEFAULT_CFG",
    "layers.1.self_attn.o_proj": "INT8_WEIGHT_ONLY_CFG",
    "layers.1.mlp.[gu]*_proj": "INT4_BLOCKWISE_WEIGHT_ONLY_CFG",
    "layers.1.mlp.down_proj": "W4A8_AWQ_BETA_CFG",
}
"""A format for each layer; layers that read the same input have the same one, as a search leaves them."""
CALIBRATION = {"sources": ["set:tests"], "samples": 4, "maximum_tokens": 24}
TOKENS = torch.randint(2, 384, (4, 24), generator=torch.Generator().manual_seed(3))


def recipe(weights, **fields):
    uncalibrated = {"fp8_per_channel_token", "fp8_block", "int8_weight_only", "int4_blockwise", "mxfp4"}
    calibration = {} if weights in uncalibrated and "kv_cache" not in fields else {"calibration": CALIBRATION}
    return QuantizationRecipe(name=weights.replace("_", "-"), weights=weights, **calibration, **fields)


def load(checkpoint):
    return LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float16).eval()


@contextlib.contextmanager
def quiet():
    """Without modelopt's prints, and with its block quantizers on the CPU."""
    with contextlib.redirect_stdout(io.StringIO()), mock.patch.object(
        tensor_quant, "dynamic_block_quantize_op", _block_quantizer
    ):  # fmt: skip
        yield


def quantize(model, config):
    def calibrate(calibrated):
        with torch.no_grad():
            calibrated(TOKENS)

    with quiet():
        return mtq.quantize(model, config, calibrate)


def write(model, source, directory):
    with quiet(), torch.inference_mode():
        export_hf_checkpoint(model, dtype=torch.float16, export_dir=directory)
    copy_companions(source, directory)
    return directory


def export(source, asked, directory):
    return write(quantize(load(source), modelopt_config(asked)), source, directory)


def mixed_config():
    """modelopt's configuration of `MIXED`."""
    entries = [{"quantizer_name": "*", "enable": False}]
    for layers, name in MIXED.items():
        entries += [
            {**entry, "quantizer_name": f"*{layers}*{entry['quantizer_name'].lstrip('*')}"}
            for entry in getattr(mtq, name)["quant_cfg"]
            if entry.get("quantizer_name") in ("*weight_quantizer", "*input_quantizer") and "parent_class" not in entry
        ]
    return {"quant_cfg": entries, "algorithm": "max"}


def export_mixed(source, directory):
    return write(quantize(load(source), mixed_config()), source, directory)


def _block_quantizer(inputs, block, amax, *_):
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    second = amax.float().amax() / (6 * 448)
    packed, scale, second = NVFP4QTensor.quantize(inputs.float().contiguous(), block, None, second)
    return packed.dequantize(inputs.dtype, scale=scale, double_scale=second, block_sizes={-1: block})

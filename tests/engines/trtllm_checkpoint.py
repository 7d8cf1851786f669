"""Small TensorRT-LLM checkpoints of the recorded shape, with weights that are only zeros."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

LAYERS = 4


def write_trtllm_checkpoint(
    directory: Path, *, tensor: int = 1, pipeline: int = 1, algorithm="FP8", kv_algorithm="FP8", **changes
) -> Path:
    """A checkpoint of a little Llama; `changes` replace keys of its config.json."""
    directory.mkdir(parents=True)
    config = {
        "producer": {"name": "modelopt", "version": "0.37.0"},
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "logits_dtype": "float16",
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "norm_epsilon": 1e-05,
        "vocab_size": 512,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "use_parallel_embedding": True,
        "embedding_sharding_dim": 0,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 10000.0,
        "mapping": {"world_size": tensor * pipeline, "tp_size": tensor, "pp_size": pipeline},
        "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": kv_algorithm},
    }
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    for rank in range(tensor * pipeline):
        _write_weights(directory / f"rank{rank}.safetensors", algorithm=algorithm)
    return directory


def _write_weights(path: Path, *, algorithm: str | None) -> None:
    layer = {"input_layernorm.weight": ("BF16", [256])}
    for name in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"):
        layer[f"{name}.weight"] = ("F8_E4M3" if algorithm else "BF16", [2, 64])
        layer |= {f"{name}.weights_scaling_factor": ("F32", [1])} if algorithm else {}
    tensors = {f"transformer.layers.{number}.{name}": kind for number in range(LAYERS) for name, kind in layer.items()}
    for name in ("transformer.vocab_embedding.weight", "transformer.ln_f.weight", "lm_head.weight"):
        tensors[name] = ("BF16", [256])
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * {"BF16": 2, "F8_E4M3": 1, "F32": 4}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))

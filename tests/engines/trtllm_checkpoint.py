"""Small TensorRT-LLM checkpoints of the recorded shape, with weights that are only zeros."""

from __future__ import annotations

import json
from pathlib import Path

LAYERS = 4
_NUMBERS_PER_LAYER = 512


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
        _write_weights(directory / f"rank{rank}.safetensors")
    return directory


def _write_weights(path: Path) -> None:
    names = [f"transformer.layers.{layer}.mlp.fc.weight" for layer in range(LAYERS)]
    size = _NUMBERS_PER_LAYER * 2
    header = {
        name: {"dtype": "F16", "shape": [_NUMBERS_PER_LAYER], "data_offsets": [place * size, (place + 1) * size]}
        for place, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size * LAYERS))

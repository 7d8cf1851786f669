"""What the transfer benchmark moves: a model repository with sound safetensors shards, and many small files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

SMALL_FILE_BYTES = (200, 8_000)

_SHARDS = 4
_COLUMNS = 2048
_ROWS = 8192
_TENSOR_BYTES = _ROWS * _COLUMNS * 2
_FINITE = np.uint16(0xBFFF)
"""Clears one bit of the exponent: a random BF16 number is then never NaN or infinite."""

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _COLUMNS,
    "intermediate_size": _ROWS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
_CARD = "---\nlicense: apache-2.0\n---\n# Random weights\n"


def write_repository(directory: Path, megabytes: int) -> int:
    """Write a model of about that many megabytes (10^6 bytes); returns its exact size in bytes."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(1)
    tensors = max(_SHARDS, round(megabytes * 1e6 / _TENSOR_BYTES))
    rows = _ROWS if tensors > _SHARDS else max(1, int(megabytes * 1e6 / _SHARDS / _COLUMNS / 2))
    index: dict[str, str] = {}
    for number in range(_SHARDS):
        layers = range(number * tensors // _SHARDS, (number + 1) * tensors // _SHARDS)
        names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in layers]
        shard = f"model-{number + 1:05}-of-{_SHARDS:05}.safetensors"
        _write_shard(directory / shard, names, rows, random)
        index |= dict.fromkeys(names, shard)
    total = tensors * rows * _COLUMNS * 2
    _write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    _write_json(directory / "config.json", {**_CONFIG, "num_hidden_layers": tensors})
    _write_json(directory / "generation_config.json", {"eos_token_id": 2})
    _write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    vocabulary = {f"token{number}": number for number in range(32000)}
    _write_json(directory / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary}})
    (directory / "README.md").write_text(_CARD)
    return sum(path.stat().st_size for path in directory.iterdir())


def write_small_files(directory: Path, count: int) -> int:
    """Write files of random sizes in a hundred directories; returns their bytes."""
    random = np.random.default_rng(2)
    total = 0
    for number, size in enumerate(random.integers(*SMALL_FILE_BYTES, size=count)):
        path = directory / f"part-{number % 100:02}" / f"{number:05}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(size))
        total += int(size)
    return total


def _write_shard(path: Path, names: list[str], rows: int, random: np.random.Generator) -> None:
    size = rows * _COLUMNS * 2
    header = {
        name: {"dtype": "BF16", "shape": [rows, _COLUMNS], "data_offsets": [order * size, (order + 1) * size]}
        for order, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _ in names:
            stream.write((random.integers(0, 2**16, size // 2, dtype=np.uint16) & _FINITE).tobytes())


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))

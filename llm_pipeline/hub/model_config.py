"""`config.json` before a loader believes it: its shape, its bounds, and whether the weights agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.safetensors_header import TensorEntry
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read_object
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_MAXIMUM_BYTES = 10_000_000
_LARGEST = {
    "hidden_size": 2**20,
    "intermediate_size": 2**24,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 2**16,
    "num_key_value_heads": 2**16,
    "head_dim": 2**16,
    "vocab_size": 2**24,
    "max_position_embeddings": 2**32,
}
"""Far above every model there is, and far below what would make a loader allocate the machine away."""
_NESTED = "text_config"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_PLAIN_FLOATS = {"F16", "BF16", "F32", "F64"}
_HEAD_WIDTHS = ("head_dim", "head_size")  # head_dim itself, and those of latent attention, qk_nope_head_dim
_OTHER_WIDTHS = ("embedding_size", "word_embed_proj_dim")


def check_model_config(path: Path, tensors: Mapping[str, TensorEntry]) -> None:
    """Check a `config.json` against fixed bounds and against the model's tensors.

    Raises:
        IntegrityError: It is not a JSON object, names no architecture, has absurd dimensions, or the weights contradict
            it.
    """
    config = read_object(path, where=path.name, maximum_bytes=_MAXIMUM_BYTES, finite=False)
    if config.get("auto_map"):  # also in models that transformers has classes of its own for
        log.warning(
            "the model names code of its repository, which was not fetched and is never run: the installed "
            "transformers must know this kind of model by itself",
            auto_map=_first(config["auto_map"]),
            model_type=str(config.get("model_type", ""))[:120],
        )
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise _senseless(path, "architectures does not name a model class")
    nested = config.get(_NESTED)
    for part in (config, nested if isinstance(nested, dict) else {}):
        _check_dimensions(path, part)
    described = nested if isinstance(nested, dict) else config
    _check_embedding(path, described, tensors, exact=described is config)


def _senseless(path: Path, problem: str) -> IntegrityError:
    return IntegrityError(f"not a sound model configuration: {problem}", where=path.name, hint="do not load it")


def _first(auto_map: Any) -> str:
    return str(next(iter(auto_map.values()), "") if isinstance(auto_map, dict) else auto_map)[:120]


def _check_dimensions(path: Path, config: Mapping[str, Any]) -> None:
    for name, largest in _LARGEST.items():
        value = config.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]  # a few models: one a layer
        if not all(type(item) is int and 0 < item <= largest for item in values):
            raise _senseless(path, f"{name} is {str(value)[:80]}, not 1 to {largest}")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    head_is_given = any(value and name.endswith(_HEAD_WIDTHS) for name, value in config.items())
    if isinstance(hidden, int) and isinstance(heads, int) and hidden % heads and not head_is_given:
        raise _senseless(
            path, f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and no head_dim"
        )
    shared = config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and heads % shared:
        raise _senseless(path, f"num_attention_heads {heads} is not a multiple of num_key_value_heads {shared}")


def _check_embedding(path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorEntry], *, exact: bool) -> None:
    """Compare the token embedding with the configuration; a model of several parts may have a few rows more."""
    rows, width = config.get("vocab_size"), config.get("hidden_size")
    if not isinstance(rows, int) or not isinstance(width, int) or any(name in config for name in _OTHER_WIDTHS):
        return
    for name, tensor in tensors.items():
        if not name.endswith(_EMBEDDINGS) or tensor.dtype not in _PLAIN_FLOATS or len(tensor.shape) != 2:  # noqa: PLR2004
            continue
        if tensor.shape[1] != width or tensor.shape[0] < rows or (exact and tensor.shape[0] != rows):
            raise _senseless(
                path, f"vocab_size x hidden_size is {rows} x {width}, but {name[:120]} is {list(tensor.shape)}"
            )

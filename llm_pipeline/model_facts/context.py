"""The longest context that a model was made for, and what config.json leaves to its architecture's own class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.model_facts.words import LARGEST, ConfigWords

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
    },
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
}
"""By architecture of the decoder; Transformers 4.50 to 5.5 (`configuration_gemma3.py`, `configuration_mistral.py`)."""


def with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json with what its architecture adds."""
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        return {**config, "text_config": with_defaults(nested)}
    return {**_DEFAULTS.get(str(config.get("model_type")), {}), **config}


_EXTENDING = {"yarn", "linear", "dynamic", "longrope", "su"}
"""Kinds of rope scaling that reach beyond the positions of the training; `llama3` states the extended ones."""

_STATED_EXTENDED = {"llama3", "default", "mrope", "longrope", "su"}
"""Kinds whose configurations state the positions after scaling."""

_UNBOUNDED = {"mamba", "mamba2", "falcon_mamba", "rwkv"}
"""Architectures without positions."""

_NO_LIMIT = 2**20


def stated_context(config: Mapping[str, Any]) -> int | None:
    """Positions in tokens by a config.json alone; None where it does not say."""
    try:
        return context_length(ConfigWords(with_defaults(config)))
    except ConfigError:
        return None


def context_length(words: ConfigWords) -> int:
    """Positions in tokens.

    `max_position_embeddings` counts where rope scaling says that it is extended already, or says nothing; under YaRN,
    linear and dynamic scaling of `original_max_position_embeddings` (or of the positions themselves) by `factor`, the
    scaled number counts where it is the larger one.

    Raises:
        ConfigError: No key says it, or the scaling is by no such number.
    """
    if words.optional("max_position_embeddings") is None and words.model_type in _UNBOUNDED:
        return _NO_LIMIT
    stated = words.count("max_position_embeddings")
    scaling = words.get("rope_scaling") or words.get("rope_parameters")
    return max(stated, _scaled(words, scaling)) if isinstance(scaling, Mapping) else stated


def _scaled(words: ConfigWords, scaling: Mapping[str, Any]) -> int:
    kind = scaling.get("rope_type") or scaling.get("type")
    original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
    if kind not in _EXTENDING - _STATED_EXTENDED or type(original) is not int or not isinstance(factor, int | float):
        return 0
    largest = LARGEST["max_position_embeddings"]
    if not (0 < original <= largest and 0 <= factor <= largest / original):
        by = f"{original} positions by {factor}"[:80]
        raise words.unknown("max_position_embeddings", f"scales {by}, which gives no context")
    return int(original * factor)

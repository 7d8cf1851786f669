"""Numbers that config.json files leave out, because the architecture's own configuration class has them.

Only where published models do so: anything else that is missing is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

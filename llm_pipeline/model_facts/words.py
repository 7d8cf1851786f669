"""Looking numbers up in a config.json that somebody else wrote: by every name that architectures give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import Size

NAMES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "head_size", "attention_head_dim"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "d_ff"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx",
        "max_seq_length", "model_max_length",
    ),
    "num_experts_per_tok": ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts",
                            "moe_k"),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "moe_intermediate_size": ("moe_intermediate_size", "intermediate_size_mlp", "expert_intermediate_size"),
}  # fmt: skip
"""What architectures call a number, by the name that most of them use."""

LARGEST: Mapping[str, int] = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 2**16,
    "max_position_embeddings": 2**32,
}
"""What no model has more of: a file that says so is broken, and would keep the planner busy for hours."""

_LARGEST_NUMBER = 2**40 - 1

_LAYER_KINDS = ("layer_types", "layers_block_type", "hybrid_override_pattern")

_PARTS = ("text_config", "llm_config", "language_config")
"""Where models of several parts keep the configuration of the decoder."""


class ConfigWords:
    """The decoder's part of a config.json, with the sizes that a release config states where it is silent.

    Attributes:
        part: The decoder's configuration.
        whole: All of config.json.
        sizes: What the release config states.
    """

    def __init__(self, config: Mapping[str, Any], sizes: Mapping[Any, Any] | None = None) -> None:
        self.whole = config
        nested = next((config[name] for name in _PARTS if isinstance(config.get(name), Mapping)), None)
        self.part: Mapping[str, Any] = config if nested is None else nested
        self.sizes: Mapping[Any, Any] = sizes or {}

    @property
    def model_type(self) -> str:
        """The decoder's architecture.

        Raises:
            ConfigError: It is not named.
        """
        named = self.part.get("model_type") or self.whole.get("model_type") or self.sizes.get("model_type")
        if not isinstance(named, str):
            raise self.unknown("model_type", "names no architecture")
        return named

    def get(self, name: str) -> Any:
        """A value of the decoder's part, or of the whole; None where neither has it."""
        value = self.part.get(name)
        return self.whole.get(name) if value is None else value

    def count(self, name: str) -> int:
        """A whole number above 0, by any of its names.

        Raises:
            ConfigError: It is not there, or is no such number.
        """
        found = self.optional(name)
        if found is None:
            raise self.unknown(name, f"does not say {name}")
        return found

    @property
    def named_layers(self) -> Sequence[Any] | None:
        """The kind of each layer in the words of config.json; None where it names none.

        Raises:
            ConfigError: It names them in another form than one after another.
        """
        for name in _LAYER_KINDS:
            if found := self.get(name):
                if not isinstance(found, Sequence):
                    raise self.unknown("layer_types", f"says {name} {str(found)[:40]}, which names no layers")
                return found
        return None

    def numbers(self, name: str) -> Sequence[Any]:
        """A list of layers; empty where it is not set.

        Raises:
            ConfigError: It is no list.
        """
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise self.unknown(name, f"says {name} {str(value)[:40]}, which is no list of layers")
        return value or ()

    def optional(self, name: str) -> int | None:
        """The same; None where it is not there, or 0: architectures say so what they do not have.

        Raises:
            ConfigError: It is no whole number above 0.
        """
        for alias in NAMES.get(name, (name,)):
            value = self.get(alias)
            if isinstance(value, Sequence) and not isinstance(value, str) and value:  # a few models: one a layer
                value = max(value, key=lambda item: item if type(item) is int else -1)
            if value is not None and value != 0:
                if type(value) is not int or not 0 < value <= LARGEST.get(name, _LARGEST_NUMBER):
                    raise self.unknown(name, f"says {alias} {str(value)[:40]}, which is no such number")
                return value
        if name == "num_hidden_layers" and self.named_layers and len(self.named_layers) <= LARGEST[name]:
            return len(self.named_layers)
        stated = self.sizes.get(name)
        return stated if type(stated) is int and 0 < stated <= LARGEST.get(name, _LARGEST_NUMBER) else None

    def flag(self, name: str, default: bool) -> bool:
        """A switch; the default where it is not set."""
        value = self.get(name)
        value = self.sizes.get(name) if value is None else value
        return default if value is None else bool(value)

    def unknown(self, name: str, problem: str) -> ConfigError:
        """The error for a fact that the model's files do not state."""
        stated = name if name in get_args(Size) else "kv_bytes_per_token and state_bytes_per_sequence"
        hint = f"state it by hand in the release config, model.sizes.{stated}"
        return ConfigError(f"the size of the model is not known: its config.json {problem}", where="model", hint=hint)

"""The sampling parameters: the names of the stable API, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class SamplingParams:
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    beam_search_diversity_rate: float | None = None
    early_stopping: int | None = None
    max_tokens: int = 32
    min_tokens: int | None = None
    end_id: int | None = None
    pad_id: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    top_p_decay: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    bad: list[str] | str | None = None
    bad_token_ids: list[int] | None = None
    logits_processor: Any = None
    apply_batched_logits_processor: bool = False
    guided_decoding: Any = None
    embedding_bias: Any = None
    lookahead_config: Any = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    return_log_probs: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = True
    return_encoder_output: bool = False
    return_perf_metrics: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is None or self.max_tokens < 1:
            raise ValueError(f"max_tokens must be greater than 0, got {self.max_tokens}")
        if self.top_p is not None and not 0 <= self.top_p <= 1:
            raise ValueError(f"require 0 <= top_p <= 1, got {self.top_p}")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got {self.temperature}")

    @property
    def stop_texts(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

"""A double of vLLM's asynchronous engine: it counts on from the prompt's last token, one token each millisecond."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__version__ = "0.20.2"


class AsyncEngineArgs:
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments


@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    ignore_eos: bool
    output_kind: Any
    detokenize: bool
    stop_token_ids: list[int] = field(default_factory=list)
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: Any = None

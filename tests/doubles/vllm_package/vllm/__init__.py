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

"""Triton's generate extension, as the served models `llm` of this package use it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from llm_pipeline.serving.protocols.answers import GenerationParameters, Metrics, Piece, count, decoded, not_an_answer

MODEL_PATH = "/v2/models/llm"
ACTIVE_REQUESTS = "llm_active_requests"
"""The served model's gauge of requests that wait or run."""

_ABSURD_TOKENS = 2_000_000_000


@dataclass(frozen=True)
class TritonProtocol:
    """Whole answers of `generate`, streams of `generate_stream`.

    Attributes:
        model_path: Path of the model; add `/versions/1` to pin one.
    """

    metrics: ClassVar[Metrics] = Metrics(
        active=(ACTIVE_REQUESTS,),
        requests="llm_requests_total",
        cancelled=("outcome", "cancelled"),
        output_tokens=("llm_tokens_total",),
        kv_cache=("llm_kv_cache_usage",),
    )
    model_path: str = MODEL_PATH

    @property
    def whole_path(self) -> str:
        """Path of requests for whole answers."""
        return f"{self.model_path}/generate"

    @property
    def stream_path(self) -> str:
        """Path of requests for streamed answers."""
        return f"{self.model_path}/generate_stream"

    def body(self, asked: GenerationParameters, *, stream: bool) -> dict[str, Any]:
        """The JSON body of a request."""
        body: dict[str, Any] = {
            "text_input": asked.prompt,
            "max_tokens": asked.maximum_tokens,
            "temperature": asked.temperature,
            "ignore_eos": asked.ignore_eos,
            "stream": stream,
        }
        if asked.stop:
            body["stop"] = list(asked.stop)
        return body

    def reader(self, *, stream: bool) -> TritonReader:  # noqa: ARG002 - both have the same chunks
        """A reader of one answer; chunks say everything of themselves."""
        return TritonReader()

    def bad_bodies(self, long_prompt: str | None) -> Mapping[str, bytes]:
        """Requests that must be refused with a reason, by what is wrong with them.

        Args:
            long_prompt: A prompt that is far too long for the model; None where its limit is not known.
        """
        bodies: dict[str, dict[str, Any]] = {
            "no prompt": {"max_tokens": 4},
            "an empty prompt": {"text_input": "", "max_tokens": 4},
            "max_tokens of the wrong type": {"text_input": "1", "max_tokens": "many"},
            "max_tokens far too large": {"text_input": "1", "max_tokens": _ABSURD_TOKENS},
        }
        if long_prompt is not None:
            bodies["a prompt far too long"] = {"text_input": long_prompt, "max_tokens": 4}
        return {"not JSON": b"{", **{what: json.dumps(body).encode() for what, body in bodies.items()}}

    @property
    def context_path(self) -> str:
        """Where the server says how many tokens one request may have."""
        return f"{MODEL_PATH}/config"

    def context_length(self, document: Any) -> int:
        """Tokens that one request may have, from the document at `context_path`: a parameter of the configuration.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: It does not say.
        """
        return int(document["parameters"]["maximum_tokens_per_request"]["string_value"])


class TritonReader:
    """Reads `generate` and `generate_stream`."""

    __slots__ = ()

    def read(self, data: bytes) -> Piece:
        """Read the data of one event, or a whole answer.

        Raises:
            ErrorInAnswer: It holds an error.
            NotAnAnswer: It is nothing of this protocol.
        """
        chunk = decoded(data)
        if not isinstance(text := chunk.get("text_output"), str):
            raise not_an_answer(data)
        try:
            return Piece(
                text,
                count(chunk["output_tokens"]),
                str(chunk.get("finish_reason", "")),
                count(chunk.get("input_tokens", 0)),
            )
        except (ValueError, LookupError, TypeError, OverflowError):
            raise not_an_answer(data) from None

    def lacks(self) -> str:
        """What an answer without errors still lacks once it has ended: nothing beside its last chunk."""
        return ""

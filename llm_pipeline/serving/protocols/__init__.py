"""The protocols that served models are asked by: Triton's generate extension, and OpenAI's completions.

    protocol = protocol_of(endpoint)
    body = protocol.body(GenerationParameters("2+2=", 4), stream=True)
    reader = protocol.reader(stream=True)
    pieces = [reader.read(data) for data in events]     # text, tokens, why the answer ended
    reader.lacks()                                      # what an answer that has ended still needs to be whole

Standard library only: the load test's client processes read every chunk of an answer through this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.serving.protocols.answers import (
    KEPT_CHARACTERS,
    ErrorInAnswer,
    Flaw,
    GenerationParameters,
    Metrics,
    NotAnAnswer,
    Piece,
    flaw_of,
    header_secrets,
    reason_in,
    refusal_text,
    shown,
    without,
)
from llm_pipeline.serving.protocols.openai import OpenAiProtocol, OpenAiReader
from llm_pipeline.serving.protocols.triton import MODEL_PATH, TritonProtocol, TritonReader

if TYPE_CHECKING:
    from llm_pipeline.config.endpoint import Endpoint

__all__ = [
    "KEPT_CHARACTERS",
    "MODEL_PATH",
    "AnswerReader",
    "ErrorInAnswer",
    "Flaw",
    "GenerationParameters",
    "Metrics",
    "NotAnAnswer",
    "OpenAiProtocol",
    "Piece",
    "ServingProtocol",
    "TritonProtocol",
    "flaw_of",
    "header_secrets",
    "protocol_named",
    "protocol_of",
    "reason_in",
    "refusal_text",
    "shown",
    "without",
]  # fmt: skip


ServingProtocol = TritonProtocol | OpenAiProtocol
"""Requests to a served model, its answers and its metrics. Paths are below the endpoint's URL."""

AnswerReader = TritonReader | OpenAiReader
"""Reads one answer, chunk by chunk."""


def protocol_of(endpoint: Endpoint) -> ServingProtocol:
    """The protocol of an endpoint."""
    return protocol_named(endpoint.openai_model)


def protocol_named(openai_model: str | None) -> ServingProtocol:
    """OpenAI's protocol for a model of that name, Triton's without one."""
    return TritonProtocol() if openai_model is None else OpenAiProtocol(openai_model)

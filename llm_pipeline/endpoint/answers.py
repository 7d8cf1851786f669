"""Answers of OpenAI's API, whole and in chunks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json, to_json

from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.endpoint.protocol import Asked, ChatRequest
from llm_pipeline.endpoint.triton import Piece

Json = dict[str, Any]


TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
"""Around each call in the chat formats of Hermes, Qwen and SmolLM; the call is a JSON object."""


@dataclass
class ToolText:
    """Text that grows and may end with tool calls; none of them is shown as text.

    Attributes:
        is_list: All of it is a JSON list of calls.
        most: Calls that are told; None for all.
    """

    is_list: bool = False
    most: int | None = None
    text: str = ""
    shown: int = 0

    def take(self, piece: str, *, last: bool) -> tuple[str, list[Json]]:
        """Take new text; returns what may be shown of it, and at the end the calls."""
        self.text += piece
        if (start := 0 if self.is_list else self.text.find(TOOL_CALL)) >= 0:
            calls = self._calls(self.text[start:]) if last else []
            end = len(self.text) if last and not calls else start  # what is no call is text after all
        else:
            begun = next((size for size in range(len(TOOL_CALL) - 1, 0, -1) if self.text.endswith(TOOL_CALL[:size])), 0)
            calls, end = [], len(self.text) - (0 if last else begun)
        piece, self.shown = self.text[self.shown : end], max(self.shown, end)
        return piece, calls

    def _calls(self, text: str) -> list[Json]:
        """The calls in a text that is nothing else; none if one of them is not complete."""
        calls = []
        try:
            parts = [part.partition(TOOL_CALL_END)[0] for part in text.split(TOOL_CALL)[1:]]
            for call in from_json(text) if self.is_list else map(from_json, parts):
                arguments = json.dumps(call.get("arguments", {}), ensure_ascii=False)
                said = {"name": str(call["name"]), "arguments": arguments}
                calls.append({"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": said})
        except (ValueError, LookupError, AttributeError, TypeError):
            return []
        return calls[: self.most]


@dataclass
class _Choice:
    text: str = ""
    length: int = 0
    tools: ToolText | None = None
    finish_reason: str | None = None
    logprobs: list[Json] = field(default_factory=list)


class Answer:
    """The answer to one request: `choices` of them, that grow piece by piece.

    Args:
        asked: The request.
        choices: How many answers it asks for: `n` of each prompt.
        about: The model that answers.
    """

    def __init__(self, asked: Asked, choices: int, about: EndpointDescription) -> None:
        self._chat, self._called = isinstance(asked, ChatRequest), "tool_calls"
        self._asked = asked
        self._choices = [_Choice() for _ in range(choices)]
        if isinstance(asked, ChatRequest) and asked.offers_tools:
            if asked.names_its_tool:  # as OpenAI's servers end such an answer
                self._called = "stop"
            if asked.must_call or TOOL_CALL in (about.chat.template or ""):
                most = None if asked.parallel_tool_calls else 1
                for choice in self._choices:
                    choice.tools = ToolText(asked.must_call, most)
        self._prompt_tokens = self._output_tokens = 0
        name = "chat.completion" if self._chat else "text_completion"
        self._head: Json = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{name}.chunk" if self._chat and asked.stream else name,
            "created": int(time.time()),
            "model": about.model,
            "system_fingerprint": about.release,
        }
        self._chunk_begins = b"data: " + to_json(self._head)[:-1] + b","

    def take(self, number: int, pieces: Sequence[Piece]) -> bytes:
        """Take pieces of the answer of that number; returns the events that a stream tells them with, if any."""
        return b"".join([self._take(number, piece) for piece in pieces])

    def _take(self, number: int, piece: Piece) -> bytes:
        choice = self._choices[number]
        if number % self._asked.n == 0:  # the others have the same prompt
            self._prompt_tokens += piece.input_tokens
        self._output_tokens += piece.output_tokens
        if not self._asked.stream:
            choice.text += piece.text
            choice.logprobs += piece.logprobs
            choice.finish_reason = piece.finish_reason
            return b""
        text, calls = (
            choice.tools.take(piece.text, last=bool(piece.finish_reason)) if choice.tools else (piece.text, [])
        )
        reason = self._called if calls else piece.finish_reason or None
        if not (text or reason or piece.logprobs):
            return b""
        delta: Json = {"content": text} if text else {}
        if calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        said = {"delta": delta} if self._chat else {"text": text}
        chunk = self._chunk([self._choice(number, said, piece.logprobs, reason)])
        choice.length += len(text)
        return chunk

    def whole(self) -> Json:
        """The body of an answer that is not streamed."""
        choices = []
        for number, choice in enumerate(self._choices):
            text, calls = choice.tools.take(choice.text, last=True) if choice.tools else (choice.text, [])
            message: Json = {"role": "assistant", "content": text}
            if calls:
                message = {"role": "assistant", "content": text.strip() or None, "tool_calls": calls}
            said = {"message": message} if self._chat else {"text": text}
            reason = self._called if calls else choice.finish_reason
            choices.append(self._choice(number, said, choice.logprobs, reason))
        return {**self._head, "choices": choices, "usage": self._usage()}

    def opening(self) -> bytes:
        """The first events of a stream: who speaks."""
        if not self._chat:
            return b""
        said = {"delta": {"role": "assistant", "content": ""}}
        numbers = range(len(self._choices))
        return b"".join(self._chunk([self._choice(number, said, [], None)]) for number in numbers)

    def ending(self) -> bytes:
        """The last events of a stream."""
        usage = event({**self._head, "choices": [], "usage": self._usage()})
        return (usage if self._asked.stream_options.include_usage else b"") + b"data: [DONE]\n\n"

    def _chunk(self, choices: list[Json]) -> bytes:
        options, chunk = self._asked.stream_options, dict[str, Any](choices=choices)
        if options.include_usage:
            chunk["usage"] = self._usage() if options.continuous_usage_stats else None
        return self._chunk_begins + to_json(chunk)[1:] + b"\n\n"

    def _usage(self) -> Json:
        prompt, output = self._prompt_tokens, self._output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def _choice(self, number: int, said: Json, logprobs: Sequence[Json], finish_reason: str | None) -> Json:
        told = None
        if self._asked.likeliest is not None and (logprobs or not self._asked.stream):
            told = _of_chat(logprobs) if self._chat else _of_completion(logprobs, self._choices[number].length)
        return {"index": number, **said, "logprobs": told, "finish_reason": finish_reason}


def event(document: Json) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(document) + b"\n\n"


def _of_chat(tokens: Sequence[Json]) -> Json:
    def told(token: str, logprob: float | None, data: list[int]) -> Json:
        return {"token": token, "logprob": logprob, "bytes": data}

    return {
        "content": [
            {
                **told(token["token"], token["logprob"], token["bytes"]),
                "top_logprobs": [told(text, logprob, list(text.encode())) for text, logprob in token["top"]],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _of_completion(tokens: Sequence[Json], offset: int) -> Json:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            None if token["logprob"] is None else {token["token"]: token["logprob"], **dict(token["top"])}
            for token in tokens
        ],
        "text_offset": offsets,
    }

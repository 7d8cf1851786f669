"""OpenAI's completions, as vLLM, SGLang, `trtllm-serve`, llama.cpp's server and gateways before them offer them.

Prompts are sent as text to `/v1/completions`: chat templates were applied before, by whoever asks. Beyond OpenAI's own
fields, requests have `ignore_eos`, which all four servers know, and `continuous_usage_stats` so that each chunk of a
stream counts its tokens; a chunk with text that counts none is taken for one token until a later one does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from llm_pipeline.serving.protocols.answers import (
    SHOWN_CHARACTERS,
    ErrorInAnswer,
    GenerationParameters,
    Metrics,
    Piece,
    count,
    decoded,
    not_an_answer,
)

COMPLETIONS_PATH = "/v1/completions"
MODELS_PATH = "/v1/models"
_END = b"[DONE]"
_REASONS = {"abort": "cancelled"}
_CHAT = {"delta", "message"}


@dataclass(frozen=True)
class OpenAiProtocol:
    """Completions of one model.

    Attributes:
        model: Its name at the server; an answer of another model is an error.
    """

    metrics: ClassVar[Metrics] = Metrics(
        active=(
            *("vllm:num_requests_running", "vllm:num_requests_waiting"),
            *("sglang:num_running_reqs", "sglang:num_queue_reqs"),
            *("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
            *("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        ),
        requests="vllm:request_success_total",
        cancelled=("finished_reason", "abort"),
        output_tokens=(
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "trtllm_generation_tokens_total",
            "llamacpp:tokens_predicted_total",
        ),
        kv_cache=(
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "trtllm_kv_cache_utilization",
        ),
    )
    whole_path: ClassVar[str] = COMPLETIONS_PATH
    stream_path: ClassVar[str] = COMPLETIONS_PATH
    context_path: ClassVar[str] = MODELS_PATH
    model: str

    def body(self, asked: GenerationParameters, *, stream: bool) -> dict[str, Any]:
        """The JSON body."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": asked.prompt,
            "max_tokens": asked.maximum_tokens,
            "temperature": asked.temperature,
            "stream": stream,
        }
        if asked.ignore_eos:
            body["ignore_eos"] = True
        if asked.stop:
            body["stop"] = list(asked.stop)
        if stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return body

    def reader(self, *, stream: bool) -> OpenAiReader:
        """A reader of one answer."""
        return OpenAiReader(self.model, stream=stream)

    def bad_bodies(self, long_prompt: str | None) -> Mapping[str, bytes]:
        """As `TritonProtocol.bad_bodies`.

        Servers differ on the rest: OpenAI's API allows an empty prompt, and cuts `max_tokens` to what fits; llama.cpp's
        server takes -1 of them for no limit, and answers for its only model whatever a request calls it.
        """
        bodies: dict[str, dict[str, Any]] = {
            "no prompt": {"model": self.model, "max_tokens": 4},
            "max_tokens of the wrong type": {"model": self.model, "prompt": "1", "max_tokens": "many"},
        }
        if long_prompt is not None:
            bodies["a prompt far too long"] = {"model": self.model, "prompt": long_prompt, "max_tokens": 4}
        return {"not JSON": b"{", **{what: json.dumps(body).encode() for what, body in bodies.items()}}

    def context_length(self, document: Any) -> int:
        """As `TritonProtocol.context_length`: what the model's card says."""
        cards = {card["id"]: card for card in document["data"]}
        if (length := card_context(cards[self.model])) is None:
            raise LookupError("max_model_len")
        return length


def card_context(card: Mapping[str, Any]) -> int | None:
    """Tokens that a request may have, from a model's card in the list of models; None where it does not say.

    vLLM and SGLang have `max_model_len`, llama.cpp's server `n_ctx` under `meta`; gateways pass on neither.
    """
    meta = card.get("meta")
    length = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return length if isinstance(length, int) else None


class OpenAiReader:
    """Reads one completion; tokens are the server's `usage`, and one a chunk until it says."""

    __slots__ = ("_ended", "_model", "_reason", "_stream", "_tokens", "_usage")

    def __init__(self, model: str, *, stream: bool) -> None:
        self._model, self._stream = model, stream
        self._reason, self._tokens = "", 0
        self._usage = self._ended = False

    def read(self, data: bytes) -> Piece | None:
        """As `TritonReader.read`; None for an end mark."""
        if self._ended:
            raise not_an_answer(data)
        if self._stream and data.strip() == _END:
            self._ended = True
            return None
        chunk = decoded(data)
        try:
            self._require_model(chunk["model"])
            text = self._choice(chunk["choices"])
            tokens, input_tokens = self._count(chunk.get("usage"), text)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise not_an_answer(data) from None
        return Piece(text, tokens, self._reason, input_tokens)

    def lacks(self) -> str:
        """What an answer without errors still lacks once it has ended; empty when it is whole."""
        if not self._reason:
            return ""  # the caller says that the answer has no end
        if not self._usage:
            return "the answer has no usage: how many tokens it has is not known"
        return "" if self._ended or not self._stream else "the stream's end mark [DONE] is missing"

    def _require_model(self, name: Any) -> None:
        if name != self._model:
            shown = str(name)[:SHOWN_CHARACTERS]
            raise ErrorInAnswer(f"the model {shown!r} answered, and {self._model!r} was asked")

    def _choice(self, choices: list[Any]) -> str:
        """The text of the only choice; empty for a chunk that has usage or the finish reason alone."""
        if not choices and self._stream:
            return ""
        (choice,) = choices
        text, reason = choice.get("text"), choice.get("finish_reason")
        if text is None and self._stream and not choice.keys() & _CHAT:
            text = ""  # LiteLLM leaves it out of its last chunks
        if not isinstance(text, str) or not isinstance(reason, str | None):
            raise TypeError("a completion has text")
        if reason:
            self._reason = _REASONS.get(reason, reason)
        return text

    def _count(self, usage: Any, text: str) -> tuple[int, int]:
        """New tokens, and those of the prompt."""
        if usage is None:
            new = 1 if text else 0
            self._tokens += new
            return new, 0
        self._usage = True
        total, before = count(usage["completion_tokens"]), self._tokens
        self._tokens = total
        return total - before, count(usage.get("prompt_tokens", 0))

"""A double of TensorRT-LLM, which cannot be installed where these tests run.

It has the names and shapes of `SamplingParams` (those that this package uses, and no others), `generate`,
`generate_async` and what they return, from the project's references of its stable API: while it streams, it is one
object that changes, as upstream's is.

What it cannot show: anything about GPUs, memory, speed, kernels, arguments that are refused, or the text that a model
really writes. It answers a prompt with its line of the JSON object in `TRTLLM_DOUBLE_COMPLETIONS`, else with the prompt
itself.

Other variables: `TRTLLM_DOUBLE_FAILURE` makes loading fail with that text (`killed` and `hang` do what they
say), and `TRTLLM_DOUBLE_SECONDS_PER_TOKEN` slows generation down.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__version__ = os.environ.get("TRTLLM_DOUBLE_VERSION", "1.2.1")


@dataclass
class SamplingParams:
    max_tokens: int
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True


@dataclass
class CompletionOutput:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class RequestOutput:
    """A request and its output, which is made in advance and grows; an asynchronous iterator."""

    def __init__(self, texts: Sequence[str], token_ids: Sequence[int], reason: str, seconds_per_token: float) -> None:
        self.outputs = [CompletionOutput()]
        self.finished = False
        self._texts, self._token_ids, self._reason = texts, token_ids, reason
        self._seconds = seconds_per_token
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True

    def result(self) -> RequestOutput:
        while not self.finished:
            time.sleep(self._seconds)
            self._step()
        return self

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(self._seconds)
        self._step()
        return self

    def _step(self) -> None:
        output = self.outputs[0]
        if self._aborted:
            self.finished, output.finish_reason = True, "cancelled"
            return
        done = len(output.token_ids)
        if done < len(self._token_ids):
            output.text = self._texts[done]
            output.token_ids.append(self._token_ids[done])
        if len(output.token_ids) >= len(self._token_ids):
            self.finished, output.finish_reason = True, self._reason


class LLM:
    def __init__(self, model: str, **arguments: Any) -> None:
        _fail_as_told()
        self.tokenizer = _Tokenizer(Path(model) / "tokenizer.json")
        self._limit = arguments.get("max_seq_len")
        self._seconds = float(os.environ.get("TRTLLM_DOUBLE_SECONDS_PER_TOKEN", "0"))
        table = os.environ.get("TRTLLM_DOUBLE_COMPLETIONS")
        self._completions: dict[str, str] = json.loads(Path(table).read_text(encoding="utf-8")) if table else {}

    def generate(
        self,
        inputs: Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams],
        use_tqdm: bool = True,  # noqa: ARG002 - upstream's
    ) -> list[RequestOutput]:
        given = sampling_params if isinstance(sampling_params, Sequence) else [sampling_params] * len(inputs)
        requests = [self.generate_async(prompt, params) for prompt, params in zip(inputs, given, strict=True)]
        return [request.result() for request in requests]

    def generate_async(
        self,
        inputs: str | Sequence[int],
        sampling_params: SamplingParams,
        streaming: bool = False,  # noqa: ARG002 - upstream's
    ) -> RequestOutput:
        ids = self.tokenizer.encode(inputs, add_special_tokens=False) if isinstance(inputs, str) else list(inputs)
        prompt = inputs if isinstance(inputs, str) else self.tokenizer.decode(ids)
        if self._limit is not None and len(ids) + sampling_params.max_tokens > self._limit:
            raise ValueError("The sum of prompt length and max_tokens should not exceed max_seq_len")
        text, most, reason = self._completions.get(prompt, prompt), sampling_params.max_tokens, "stop"
        answer = self.tokenizer.encode(text, add_special_tokens=False)
        if len(answer) > most or (sampling_params.ignore_eos and answer):
            answer, reason = (answer * -(-most // len(answer)))[:most], "length"
        texts = [self.tokenizer.decode(answer[:end]) for end in range(1, len(answer) + 1)]
        if texts and reason == "stop":
            texts[-1] = text
        return RequestOutput(texts, answer, reason, self._seconds)

    def shutdown(self) -> None:
        """Nothing is held."""


class _Tokenizer:
    """The checkpoint's own tokenizer where it has words, else words for tokens."""

    def __init__(self, file: Path) -> None:
        self._words: dict[int, str] = {}
        self._tokenizer: Any = None
        if len(json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]) > 1:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(file))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if self._tokenizer is not None:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        words = re.findall(r"\s*\S+|\s+$", text)
        ids = [zlib.crc32(word.encode()) % 2**31 for word in words]
        self._words.update(zip(ids, words, strict=True))
        return ids

    def decode(self, ids: list[int]) -> str:
        if self._tokenizer is not None:
            return str(self._tokenizer.decode(ids))
        return "".join(self._words.get(number, f" <{number}>") for number in ids)


def _fail_as_told() -> None:
    failure = os.environ.get("TRTLLM_DOUBLE_FAILURE")
    if failure == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == "hang":
        time.sleep(3600)
    if failure:
        raise RuntimeError(failure)

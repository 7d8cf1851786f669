"""The LLM class: checks what it is given, then answers from a table."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .arguments import check_arguments, check_checkpoint
from .outputs import Answer, RequestOutput
from .sampling_params import SamplingParams


class LLM:
    def __init__(self, model: str | Path, tokenizer: str | Path | None = None, **kwargs: Any) -> None:
        version = os.environ.get("TRTLLM_DOUBLE_VERSION", "1.2.1")
        named = {} if tokenizer is None else {"tokenizer": str(tokenizer)}
        check_arguments({"model": str(model), **named, **kwargs}, version)
        check_checkpoint(Path(model), version)
        _fail_as_told()
        self.tokenizer = _Tokenizer(Path(tokenizer or model))
        self.closed = False
        self._limit = kwargs.get("max_seq_len")
        self._seconds = float(os.environ.get("TRTLLM_DOUBLE_SECONDS_PER_TOKEN", "0"))
        table = os.environ.get("TRTLLM_DOUBLE_COMPLETIONS")
        self._completions: dict[str, str] = json.loads(Path(table).read_text(encoding="utf-8")) if table else {}

    def generate(
        self,
        inputs: str | Sequence[int] | Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,  # noqa: ARG002 - upstream's
    ) -> RequestOutput | list[RequestOutput]:
        if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)):
            return self.generate_async(inputs, sampling_params).result()
        given = sampling_params if isinstance(sampling_params, Sequence) else [sampling_params] * len(inputs)
        if len(given) != len(inputs):
            raise ValueError(f"got {len(inputs)} prompts and {len(given)} sampling params")
        requests = [self.generate_async(prompt, params) for prompt, params in zip(inputs, given, strict=True)]
        return [request.result() for request in requests]

    def generate_async(
        self,
        inputs: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
    ) -> RequestOutput:
        if self.closed:
            raise RuntimeError("LLM is shutting down")
        params = sampling_params or SamplingParams()
        if isinstance(inputs, str):
            prompt, ids = inputs, self.tokenizer.encode(inputs, add_special_tokens=False)
        else:
            prompt, ids = self.tokenizer.decode(list(inputs)), list(inputs)
        if self._limit is not None and len(ids) + params.max_tokens > self._limit:
            raise ValueError(
                f"The sum of prompt length ({len(ids)}) and max_tokens ({params.max_tokens}) should not exceed "
                f"max_seq_len ({self._limit})"
            )
        answer = self._answer(prompt, params)
        return RequestOutput(prompt, ids, answer, streaming=streaming, seconds_per_token=self._seconds)

    def shutdown(self) -> None:
        self.closed = True

    def _answer(self, prompt: str, params: SamplingParams) -> Answer:
        text, reason, stopped_by = self._completions.get(prompt, prompt), "stop", None
        if not params.ignore_eos:
            text, stopped_by = _cut(text, params)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > params.max_tokens or (params.ignore_eos and ids):
            ids = (ids * -(-params.max_tokens // len(ids)))[: params.max_tokens]
            reason, stopped_by = "length", None
        texts = [self.tokenizer.decode(ids[:end]) for end in range(1, len(ids) + 1)]
        if texts and reason == "stop":
            texts[-1] = text
        return Answer(texts, ids, reason, stopped_by)


def _cut(text: str, params: SamplingParams) -> tuple[str, str | None]:
    found = [(text.find(stop), stop) for stop in params.stop_texts if stop in text]
    if not found:
        return text, None
    place, stop = min(found)
    return text[: place + (len(stop) if params.include_stop_str_in_output else 0)], stop


class _Tokenizer:
    """The checkpoint's own tokenizer where this interpreter has the library and it is one, else words for tokens."""

    def __init__(self, directory: Path) -> None:
        self._words: dict[int, str] = {}
        self._tokenizer = None
        if not any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
            raise OSError(f"Can't load tokenizer for '{directory}'")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            return
        file = directory / "tokenizer.json"
        vocabulary = (
            json.loads(file.read_text(encoding="utf-8")).get("model", {}).get("vocab", {}) if file.is_file() else {}
        )
        if len(vocabulary) > 1:
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

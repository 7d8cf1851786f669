"""What a request returns: one object that changes while it streams."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Generator, Sequence
from dataclasses import dataclass, field

_numbers = itertools.count(1)


@dataclass
class CompletionOutput:
    """One completion; `text_diff` and `token_ids_diff` are what came since the object was last looked at."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    _shown_text: int = 0
    _shown_tokens: int = 0

    @property
    def text_diff(self) -> str:
        return self.text[self._shown_text :]

    @property
    def token_ids_diff(self) -> list[int]:
        return self.token_ids[self._shown_tokens :]

    @property
    def length(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Answer:
    """The whole completion, made in advance: each step's text so far, the ids, and why it ends."""

    texts: Sequence[str]
    token_ids: Sequence[int]
    finish_reason: str
    stop_reason: str | None = None


class RequestOutput:
    """A request and its outputs; awaitable, and an asynchronous iterator when it streams."""

    def __init__(
        self, prompt: str, prompt_token_ids: list[int], answer: Answer, *, streaming: bool, seconds_per_token: float
    ) -> None:
        self.request_id = next(_numbers)
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput()]
        self.finished = False
        self._answer = answer
        self._streaming = streaming
        self._seconds = seconds_per_token
        self._aborted = False

    def abort(self) -> None:
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def result(self, timeout: float | None = None) -> RequestOutput:  # noqa: ARG002 - upstream's
        while not self.finished:
            time.sleep(self._seconds)
            self._step()
        return self

    async def aresult(self) -> RequestOutput:
        while not self.finished:
            await asyncio.sleep(self._seconds)
            self._step()
        return self

    def __await__(self) -> Generator[None, None, RequestOutput]:
        return self.aresult().__await__()

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        if not self._streaming:
            return await self.aresult()
        await asyncio.sleep(self._seconds)
        self._step()
        return self

    def _step(self) -> None:
        output, answer = self.outputs[0], self._answer
        output._shown_text, output._shown_tokens = len(output.text), len(output.token_ids)
        if self._aborted:
            self.finished, output.finish_reason = True, "cancelled"
            return
        done = len(output.token_ids)
        if done < len(answer.token_ids):
            output.text = answer.texts[done]
            output.token_ids.append(answer.token_ids[done])
        if len(output.token_ids) >= len(answer.token_ids):
            self.finished = True
            output.finish_reason, output.stop_reason = answer.finish_reason, answer.stop_reason

"""Users of all kinds at once, as a process: mixed_users.py PORT RATE RECORD.

Completions, whole and streamed, and unary gRPC; the record says, too, which server gave the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import grpc.aio
from arriving_users import ArrivingUsers, IncompleteAnswer, serve

SHARES = {"unary": 0.5, "sse": 0.3, "grpc unary": 0.2}
ANSWER_SECONDS = 30.0
"""A user waits so long for a whole answer."""

_RECORD_SECONDS = 0.1
_CHANNELS = 4
_SERVICE = "/inference.GRPCInferenceService/"
_TOKENS = 6


class Users(ArrivingUsers):
    def __init__(self, port: int, rate: float) -> None:
        super().__init__(rate, SHARES, answer_seconds=ANSWER_SECONDS, keep_alive=True)
        self.url = f"http://127.0.0.1:{port}/v1/completions"
        self.address = f"127.0.0.1:{port}"
        self.asks = {"unary": self._unary, "sse": self._events, "grpc unary": self._grpc_unary}

    async def connect(self, stack: contextlib.AsyncExitStack) -> None:
        await super().connect(stack)
        own_pool = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(self.address, options=own_pool) for _ in range(_CHANNELS)]
        self.channels = [await stack.enter_async_context(channel) for channel in channels]

    async def _unary(self) -> str:
        async with self.session.post(self.url, json=_body(stream=False)) as response:
            answer = await response.json()
            if response.status != 200 or answer["choices"][0]["finish_reason"] != "length":
                raise IncompleteAnswer(f"{response.status} {answer}")
            return response.headers["x-served-by"]

    async def _events(self) -> str:
        async with self.session.post(self.url, json=_body(stream=True)) as response:
            chunks = [line[5:] async for line in response.content if line.startswith(b"data:")]
            if response.status != 200 or chunks[-1:] != [b" [DONE]\n"]:
                raise IncompleteAnswer(f"{response.status} after {len(chunks)} chunks")
            return response.headers["x-served-by"]

    async def _grpc_unary(self) -> str:
        call = random.choice(self.channels).unary_unary(f"{_SERVICE}ModelInfer")  # noqa: S311
        answer: bytes = await call(b"one", timeout=self.answer_seconds)
        return answer.decode()


def _body(*, stream: bool) -> dict[str, object]:
    return {"prompt": "one", "max_tokens": _TOKENS, "stream": stream}


if __name__ == "__main__":
    users = Users(int(sys.argv[1]), float(sys.argv[2]))
    asyncio.run(serve(users, Path(sys.argv[3]), record_seconds=_RECORD_SECONDS))

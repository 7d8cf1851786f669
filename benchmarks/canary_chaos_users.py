"""Users of a chaos run, as a process: canary_chaos_users.py PORT RATE RECORD.

Unary requests and streams over HTTP, each over a connection of its own.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "canary"))

from arriving_users import ArrivingUsers, IncompleteAnswer, serve

ANSWER_SECONDS = 60.0
SHARES = {"unary": 0.8, "stream": 0.2}
TOKENS = 4
RECORD_SECONDS = 0.5


class Users(ArrivingUsers):
    """What they sent, and what they were answered."""

    def __init__(self, port: int, rate: float) -> None:
        super().__init__(rate, SHARES, answer_seconds=ANSWER_SECONDS, keep_alive=False)
        self._url = f"http://127.0.0.1:{port}/v2/models/llm"
        self.asks = {"unary": self._unary, "stream": self._stream}

    async def _unary(self) -> str:
        async with self.session.post(f"{self._url}/generate", json=_body()) as response:
            text = await response.text()
            if response.status != 200 or " a b" not in text:
                raise IncompleteAnswer(f"{response.status} {text}")
            return ""

    async def _stream(self) -> str:
        async with self.session.post(f"{self._url}/generate_stream", json={**_body(), "stream": True}) as response:
            chunks = [line async for line in response.content if line.startswith(b"data:")]
            if response.status != 200 or not chunks:
                raise IncompleteAnswer(f"{response.status}, {len(chunks)} chunks")
            return ""


def _body() -> dict[str, object]:
    return {"text_input": "a b", "max_tokens": TOKENS}


if __name__ == "__main__":
    users = Users(int(sys.argv[1]), float(sys.argv[2]))
    asyncio.run(serve(users, Path(sys.argv[3]), record_seconds=RECORD_SECONDS))

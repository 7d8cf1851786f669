"""Users of OpenAI's API, whole answers and streams, as a process: openai_users.py PORT RATE RECORD."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from arriving_users import ArrivingUsers, IncompleteAnswer, serve

_TOKENS = 6


class Users(ArrivingUsers):
    def __init__(self, port: int, rate: float) -> None:
        super().__init__(rate, {"unary": 0.7, "sse": 0.3}, answer_seconds=30.0, keep_alive=True)
        self.url = f"http://127.0.0.1:{port}/v1/completions"
        self.asks = {"unary": self._unary, "sse": self._events}

    async def _unary(self) -> str:
        async with self.session.post(self.url, json=_body(stream=False)) as response:
            answer = await response.json()
            if response.status != 200 or "error" in answer or answer["choices"][0]["finish_reason"] != "length":
                raise IncompleteAnswer(f"{response.status} {answer}")
            return response.headers.get("x-llm-release", "")

    async def _events(self) -> str:
        async with self.session.post(self.url, json=_body(stream=True)) as response:
            events = [line[5:].strip() async for line in response.content if line.startswith(b"data:")]
            if response.status != 200 or not events or events[-1] != b"[DONE]" or any(b'"error"' in e for e in events):
                raise IncompleteAnswer(f"{response.status} after {len(events)} events")
            return response.headers.get("x-llm-release", "")


def _body(*, stream: bool) -> dict[str, object]:
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    return {"model": "llm", "prompt": "one two", "max_tokens": _TOKENS, "temperature": 0, "stream": stream, **usage}


if __name__ == "__main__":
    users = Users(int(sys.argv[1]), float(sys.argv[2]))
    asyncio.run(serve(users, Path(sys.argv[3]), record_seconds=0.1))

"""A server of OpenAI's completions that is sound, or misbehaves as a prompt says: `fault=no_usage` is a word of it.

Its model is a hash: the same prompt gives the same words, unless it is drawn at a temperature. What is counted and
said follows vLLM 0.32, whose answers were looked at.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any, Self

from aiohttp import web
from loop_thread import LoopThread

KEY = "k3y-that-nobody-sees"
CONTEXT = 512
HALF = "\ufffd"
_BROKEN = {
    "html": "<html>It works!</html>",
    "chat": '{"model": "llm", "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}',
    "nothing": "",
}


class OpenAiDouble(LoopThread):
    """A context manager.

    Args:
        model: Name of its model.
        fault: A fault of every answer; it can be changed later.
        key: API key that it wants; none by default.
        counts: Whether it has metrics.
        port: Where it listens; 0 for any.

    Attributes:
        seen: Bodies of the requests that it could read.
        heads: Authorization headers, one a request.
        delay_seconds: Before every answer.
        root: What it says that its model was loaded from.
    """

    def __init__(
        self,
        *,
        model: str = "llm",
        fault: str = "",
        key: str = "",
        counts: bool = True,
        states_context: bool = True,
        port: int = 0,
    ) -> None:
        self._port = port
        self.seen: list[dict[str, Any]] = []
        self.heads: list[str | None] = []
        self.model, self.root, self.url = model, "/checkpoints/llm", ""
        self.fault, self.delay_seconds, self.longest = fault, 0.0, CONTEXT
        self._key, self._counts, self._states_context = key, counts, states_context
        self._active = self._generated = self._prompted = self._aborted = 0
        self._replays: dict[str, list[str]] = {}
        super().__init__()

    def __enter__(self) -> Self:
        super().__enter__()
        self._runner = self.await_(self._listen())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        super().__exit__()

    def die(self) -> None:
        """Listen no more, and cut every connection."""
        self.await_(self._runner.cleanup())

    @property
    def metrics_url(self) -> str:
        return f"{self.url}/metrics"

    async def _listen(self) -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/metrics", self._metrics)
        application.router.add_post("/v1/completions", self._complete)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        return runner

    def _denied(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization")
        self.heads.append(given)
        if self._key and given != f"Bearer {self._key}":
            return web.json_response({"error": {"message": f"Incorrect API key provided: {given}"}}, status=401)
        return None

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, request: web.Request) -> web.Response:
        if denied := self._denied(request):
            return denied
        card = {"id": self.model, "root": self.root} | ({"max_model_len": CONTEXT} if self._states_context else {})
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, _: web.Request) -> web.Response:
        if not self._counts:
            return web.Response(status=404)
        labels = f'engine="0",model_name="{self.model}"'
        page = f"""
vllm:num_requests_running{{{labels}}} {self._active}.0
vllm:num_requests_waiting{{{labels}}} 0.0
vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 7.0
vllm:kv_cache_usage_perc{{{labels}}} {min(1.0, self._active / 8)}
vllm:prompt_tokens_total{{{labels}}} {self._prompted}.0
vllm:generation_tokens_total{{{labels}}} {self._generated}.0
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="llm"}} {self._aborted}.0
vllm:request_queue_time_seconds_count{{{labels}}} {len(self.seen)}.0
vllm:request_queue_time_seconds_sum{{{labels}}} {len(self.seen) * 0.002}
"""
        return web.Response(text=page)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if denied := self._denied(request):
            return denied
        try:
            asked = await request.json()
            self.seen.append(asked)
            if isinstance(asked.get("prompt"), list):
                asked["prompt"] = " ".join(map(str, asked["prompt"]))
            refusal = self._refusal(asked)
        except ValueError as error:
            refusal = web.json_response({"error": {"message": str(error), "code": 400}}, status=400)
        if refusal is not None:
            return refusal
        fault = self.fault or next((w[6:] for w in asked["prompt"].split() if w.startswith("fault=")), "")
        if fault == "redirect":
            raise web.HTTPTemporaryRedirect("/v1/completions?again")
        if fault == "overloaded":
            return web.json_response({"detail": "too many requests"}, status=503)
        if fault in _BROKEN:
            return web.Response(text=_BROKEN[fault])
        self._active += 1
        try:
            await asyncio.sleep(self.delay_seconds)
            return await (self._stream if asked.get("stream") else self._whole)(request, asked, fault)
        finally:
            self._active -= 1

    def _refusal(self, asked: Any) -> web.Response | None:
        prompt, tokens = asked.get("prompt"), asked.get("max_tokens", 16)
        if asked.get("model", self.model) != self.model:
            return web.json_response({"error": {"message": "The model does not exist.", "code": 404}}, status=404)
        if self.fault == "gullible":
            asked.setdefault("prompt", "nothing")
            asked["max_tokens"] = tokens if isinstance(tokens, int) else 16
            asked.setdefault("temperature", 0.0)
            return None
        if not prompt or not isinstance(tokens, int) or not 1 <= tokens < self.longest:
            raise ValueError("prompt or max_tokens")
        if len(prompt.split()) + tokens > CONTEXT:
            raise ValueError("the prompt is too long")
        return None

    def _answer(self, asked: dict[str, Any], fault: str) -> tuple[list[str], str]:
        """Words, and why they ended."""
        prompt, count = asked["prompt"], asked["max_tokens"]
        if fault == "replay" and prompt in self._replays:
            return self._replays[prompt], "length"
        start = int(hashlib.sha256(prompt.encode()).hexdigest()[:8], 16)
        if fault == "drift":
            start += 1
        draws = random.Random(start if not asked["temperature"] else None)  # noqa: S311 - words of a model
        count -= (fault == "short") - 2 * (fault == "long")
        count += fault == "keeps_no_length" and count > 1 and asked.get("ignore_eos", False)
        words = [f" w{draws.randrange(997)}" for _ in range(count)]
        if fault == "half_characters" and count > 2:
            words[count // 2] += HALF
            words[-1] = f" {HALF}"
        self._replays[prompt] = words
        self._generated += len(words)
        self._prompted += len(prompt.split())
        for place, word in enumerate(words):
            stops = [stop for stop in asked.get("stop", ()) if HALF not in stop]  # no bytes of a text are those
            if any(stop in word for stop in stops) and fault != "reads_over_stops":
                return words[:place], "stop"
        if fault == "empty":
            words = [""] * count
        return words, {"filtered": "content_filter", "aborted": "abort"}.get(fault, "length")

    def _usage(self, asked: dict[str, Any], fault: str, tokens: int) -> dict[str, Any]:
        said: float = {"absurd_usage": float("inf"), "negative_usage": -3}.get(fault, tokens)
        return {"prompt_tokens": len(asked["prompt"].split()), "completion_tokens": said}

    def _chunk(self, fault: str, text: str | None, reason: str | None, **more: Any) -> dict[str, Any]:
        choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": reason}]
        if fault == "two_choices" and choices:
            choices *= 2
        chunk = {"object": "text_completion", "model": self.model, "choices": choices, **more}
        if fault == "other_model":
            chunk["model"] = "gpt-oss"
        if fault == "no_usage":
            chunk.pop("usage", None)
        return chunk

    async def _whole(self, request: web.Request, asked: dict[str, Any], fault: str) -> web.StreamResponse:
        words, reason = self._answer(asked, fault)
        if fault == "error":
            return web.json_response({"error": {"message": "EngineCore died", "type": "InternalServerError"}})
        if fault in {"truncated", "cut"}:
            return await self._half_a_body(request)
        end = None if fault == "no_reason" else reason
        usage = self._usage(asked, fault, len(words))
        return web.json_response(self._chunk(fault, "".join(words), end, usage=usage))

    async def _half_a_body(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "500"})
        await response.prepare(request)
        await response.write(b'{"model": "llm", "choices": [{"te')
        request.transport.abort()
        return response

    async def _stream(self, request: web.Request, asked: dict[str, Any], fault: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            async for event in self._events(asked, fault):
                if event == "cut":
                    request.transport.abort()
                    return response
                await response.write(f"data: {event}\n\n".encode())
                await asyncio.sleep(0.001)
        except ConnectionError:
            self._aborted += 1
            self._active += fault == "deaf"
        return response

    async def _events(self, asked: dict[str, Any], fault: str) -> AsyncIterator[str]:
        words, reason = self._answer(asked, fault)
        replayed = fault == "replay" and self._replays.get(asked["prompt"]) is words and asked in self.seen[:-1]
        pieces = ["".join(words)] if replayed else words
        counts = asked["stream_options"].get("continuous_usage_stats") and fault != "usage_at_the_end"
        for place, word in enumerate(pieces):
            if place == 2 and fault in {"truncated", "cut", "error"}:
                if fault == "error":
                    yield json.dumps({"error": {"message": "EngineCore died", "code": 500}})
                    yield "[DONE]"
                if fault == "cut":
                    yield "cut"
                return
            end = reason if place == len(pieces) - 1 and fault != "no_reason" else None
            tokens = len(words) if replayed else place + 1
            more = {"usage": self._usage(asked, fault, tokens)} if counts else {}
            shown = word.removesuffix(HALF) if place == len(pieces) - 1 else word
            yield json.dumps(self._chunk(fault, shown, end, **more))
        if not pieces:
            yield json.dumps(self._chunk(fault, "", reason))
        yield json.dumps(self._chunk(fault, None, None, usage=self._usage(asked, fault, len(words))))
        if fault != "no_end":
            yield "[DONE]"
        if fault == "goes_on":
            yield json.dumps(self._chunk(fault, " more", None))

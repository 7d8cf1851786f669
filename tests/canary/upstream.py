"""A small server that answers like Triton's HTTP side; what serves in a slot of the canary tests.

Run: upstream.py NAME PORT. It obeys LLM_PIPELINE_DRILL, and like Triton it reports the model's errors with 400.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys

from aiohttp import web

NAME = sys.argv[1]
DRILL = json.loads(os.environ.get("LLM_PIPELINE_DRILL", "{}"))
DELAY_SECONDS = DRILL.get("delay_milliseconds", 0.0) / 1000
FAILURE_FRACTION = DRILL.get("failure_fraction", 0.0)
BASE_SECONDS = float(os.environ.get("BASE_MILLISECONDS", "4")) / 1000
HEADERS = {"x-served-by": NAME}


def answer(tokens: int, text: str, *, last: bool) -> dict[str, object]:
    return {"text_output": text, "output_tokens": tokens, "finish_reason": "length" if last else ""}


async def think() -> bool:
    await asyncio.sleep(random.expovariate(1 / BASE_SECONDS) + DELAY_SECONDS)
    return random.random() >= FAILURE_FRACTION  # noqa: S311


async def generate(request: web.Request) -> web.Response:
    asked = await request.json()
    if not await think():
        return web.json_response({"error": "drill"}, status=400, headers=HEADERS)
    return web.json_response(answer(int(asked["max_tokens"]), NAME, last=True), headers=HEADERS)


async def generate_stream(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    if not await think():
        return web.json_response({"error": "drill"}, status=400, headers=HEADERS)
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **HEADERS})
    await response.prepare(request)
    tokens = int(asked["max_tokens"])
    for number in range(tokens):
        if asked["text_input"] == "break in the middle" and number == 2:
            await response.write(b'data: {"error":"broke in the middle"}\n\n')
            break
        chunk = json.dumps(answer(1, NAME, last=number == tokens - 1))
        await response.write(f"data: {chunk}\n\n".encode())
        await asyncio.sleep(BASE_SECONDS / 4)
    await response.write_eof()
    return response


async def ready(_: web.Request) -> web.Response:
    return web.Response()


async def main() -> None:
    application = web.Application()
    application.router.add_post("/v2/models/llm/generate", generate)
    application.router.add_post("/v2/models/llm/generate_stream", generate_stream)
    application.router.add_get("/v2/health/ready", ready)
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=3600)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[2]), backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())

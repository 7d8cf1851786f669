"""A small server that looks like Triton's HTTP side; one slot of the canary tests. Run: upstream.py NAME PORT."""

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
BASE_SECONDS = float(os.environ.get("BASE_MILLISECONDS", "5")) / 1000
HEADERS = {"x-served-by": NAME}


async def generate(request: web.Request) -> web.Response:
    await request.read()
    await asyncio.sleep(random.expovariate(1 / BASE_SECONDS) + DELAY_SECONDS)
    if random.random() < FAILURE_FRACTION:
        return web.json_response({"error": "drill"}, status=500, headers=HEADERS)
    return web.json_response({"text_output": NAME, "output_tokens": 1}, headers=HEADERS)


async def generate_stream(request: web.Request) -> web.StreamResponse:
    await request.read()
    await asyncio.sleep(random.expovariate(1 / BASE_SECONDS) + DELAY_SECONDS)
    if random.random() < FAILURE_FRACTION:
        return web.json_response({"error": "drill"}, status=500, headers=HEADERS)
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **HEADERS})
    await response.prepare(request)
    for number in range(4):
        if request.query.get("fail") == "1" and number == 2:
            await response.write(b'data: {"error":"in the middle"}\n\n')
            break
        await response.write(b"data: " + json.dumps({"text_output": NAME, "output_tokens": 1}).encode() + b"\n\n")
        await asyncio.sleep(BASE_SECONDS)
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

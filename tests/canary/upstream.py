"""A small server that answers as a slot's do: Triton's HTTP and gRPC, and OpenAI's API.

Run: upstream.py NAME HTTP_PORT OPENAI_PORT [GRPC_PORT]. It obeys LLM_PIPELINE_DRILL, or whatever `POST /drill` tells it
later. Like Triton it reports the model's errors with 400, or with INTERNAL; over OpenAI's API with 500.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    import grpc.aio

NAME = sys.argv[1]
BASE_SECONDS = 0.004
HEADERS = {"x-served-by": NAME}
GRPC_TOKENS = 6
LARGEST_BODY_BYTES = 256 * 1024 * 1024


@dataclass
class Drill:
    """What is wrong with this server.

    Attributes:
        delay_milliseconds: Before every answer.
        failure_fraction: Share of requests that fail before their first byte.
        token_milliseconds: Before every token but the first.
        truncated_fraction: Share of streams that end in the middle, without an error.
        hang_fraction: Share of requests that are never answered; the health check still is fine.
        stall_fraction: Share of streams that stop after their first token and stay open.
    """

    delay_milliseconds: float = 0.0
    failure_fraction: float = 0.0
    token_milliseconds: float = 0.0
    truncated_fraction: float = 0.0
    hang_fraction: float = 0.0
    stall_fraction: float = 0.0


class Faults:
    drill = Drill(**json.loads(os.environ.get("LLM_PIPELINE_DRILL", "{}")))


def chance(share: float) -> bool:
    return random.random() < share  # noqa: S311


async def think() -> bool:
    """The time to the first token; whether there is one."""
    drill = Faults.drill
    if chance(drill.hang_fraction):
        await asyncio.Event().wait()
    await asyncio.sleep(random.expovariate(1 / BASE_SECONDS) + drill.delay_milliseconds / 1000)
    return not chance(drill.failure_fraction)


async def token_times(tokens: int) -> AsyncIterator[int]:
    """The number of every token when its time has come; fewer than asked for when the stream is to be truncated."""
    drill = Faults.drill
    ends = tokens // 2 if chance(drill.truncated_fraction) else tokens
    stalls = chance(drill.stall_fraction)
    for number in range(ends):
        yield number
        if stalls:
            await asyncio.Event().wait()
        await asyncio.sleep(BASE_SECONDS / 4 + drill.token_milliseconds / 1000)


async def generate(request: web.Request) -> web.Response:
    asked = await request.json()
    if not asked["text_input"]:
        return web.json_response({"error": "the prompt is empty"}, status=400, headers=HEADERS)
    if not await think():
        return web.json_response({"error": "drill"}, status=400, headers=HEADERS)
    tokens = int(asked["max_tokens"])
    await asyncio.sleep(Faults.drill.token_milliseconds * (tokens - 1) / 1000)
    answer = {"text_output": NAME, "output_tokens": tokens, "finish_reason": "length"}
    return web.json_response(answer, headers=HEADERS)


async def completions(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    if not asked["prompt"]:
        return web.json_response({"error": {"message": "the prompt is empty"}}, status=400, headers=HEADERS)
    if not await think():
        return web.json_response({"error": {"message": "drill"}}, status=500, headers=HEADERS)
    tokens = int(asked["max_tokens"])
    if not asked.get("stream"):
        await asyncio.sleep(Faults.drill.token_milliseconds * (tokens - 1) / 1000)
        return web.json_response(completion(tokens, last=True), headers=HEADERS)
    response = web.StreamResponse(headers={"content-type": "text/event-stream", **HEADERS})
    await response.prepare(request)
    number = -1
    async for number in token_times(tokens):
        if asked["prompt"] == "break in the middle" and number == 2:
            await response.write(b'data: {"error":{"message":"broke in the middle"}}\n\n')
            break
        chunk = json.dumps(completion(number + 1, last=number == tokens - 1))
        await response.write(f"data: {chunk}\n\n".encode())
    if number == tokens - 1:
        await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def completion(tokens: int, *, last: bool) -> dict[str, object]:
    choice = {"index": 0, "text": NAME, "finish_reason": "length" if last else None}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    return {"object": "text_completion", "model": "llm", "choices": [choice], "usage": usage}


async def ready(_: web.Request) -> web.Response:
    return web.Response()


async def whatever(request: web.Request) -> web.Response:
    """Model control, logging, metadata, shared memory: like Triton, it obeys whoever gets through to it."""
    await request.read()
    return web.json_response({"path": request.path}, headers=HEADERS)


async def set_drill(request: web.Request) -> web.Response:
    Faults.drill = Drill(**await request.json())
    return web.Response()


async def start_grpc(port: int) -> grpc.aio.Server:
    """ModelInfer on its real path; messages are the server's name, which no proxy reads."""
    import grpc.aio

    async def infer(message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if message == f"refused by {NAME}".encode():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "it is no request")
        if not await think():
            await context.abort(grpc.StatusCode.INTERNAL, "drill")
        await asyncio.sleep(Faults.drill.token_milliseconds * (GRPC_TOKENS - 1) / 1000)
        return NAME.encode()

    methods = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}

    async def obey(_: bytes, __: grpc.aio.ServicerContext) -> bytes:
        return NAME.encode()

    class Whatever(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(obey)

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    known = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)
    server.add_generic_rpc_handlers((known, Whatever()))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server


async def main() -> None:
    application = web.Application(client_max_size=LARGEST_BODY_BYTES)
    application.router.add_post("/v2/models/llm/generate", generate)
    application.router.add_post("/v1/completions", completions)
    application.router.add_get("/v2/health/ready", ready)
    application.router.add_post("/drill", set_drill)
    application.router.add_route("*", "/{rest:.*}", whatever)
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=3600)
    await runner.setup()
    grpc_server = await start_grpc(int(sys.argv[4])) if len(sys.argv) > 4 else None
    for port in (sys.argv[3], sys.argv[2]):
        await web.TCPSite(runner, "127.0.0.1", int(port), backlog=1024).start()
    await (grpc_server.wait_for_termination() if grpc_server else asyncio.Event().wait())


if __name__ == "__main__":
    asyncio.run(main())

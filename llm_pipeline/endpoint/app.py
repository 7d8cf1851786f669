"""The routes of OpenAI's API, and what is answered when something goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_pipeline.artifacts.endpoint_description import EndpointDescription
from llm_pipeline.artifacts.repository_layout import ENDPOINT_FILE
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger, write_json_lines
from llm_pipeline.endpoint.answers import Answer, event
from llm_pipeline.endpoint.protocol import ApiError, Asked, ChatRequest, CompletionRequest, cannot, read
from llm_pipeline.endpoint.template import ChatTemplate
from llm_pipeline.endpoint.triton import Piece, Triton, generate_all

log = get_logger(__name__)

BODY_BYTES, BODY_BYTES_PER_TOKEN = 2**20, 32
"""Of the largest body: so much, and so much for each token that a request may have."""

_CREATED = 0
_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


@dataclass(frozen=True)
class Settings:
    """Where a process finds what it serves.

    Attributes:
        model: Version directory of the model `llm`, with `endpoint.json`.
        triton: Host and port of Triton's HTTP endpoint.
        root: What the list of models says that the model was loaded from; empty for its name.
    """

    model: Path
    triton: str
    root: str = ""


def application(settings: Settings) -> Starlette:
    """The ASGI application of one worker, which is a process of its own and logs as JSON lines.

    Raises:
        IntegrityError: There is no `endpoint.json`, or it is not one.
        TemplateError: The chat template is not written in Jinja.
    """
    write_json_lines()
    description = load_record(EndpointDescription, settings.model / ENDPOINT_FILE, "not an endpoint's description")
    endpoint = _Endpoint(description, settings.root)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        endpoint.triton = Triton(settings.triton)
        yield
        await endpoint.triton.close()

    return Starlette(
        routes=[
            Route("/health", endpoint.health),
            Route("/v1/models", endpoint.models),
            Route("/v1/models/{model:path}", endpoint.one_model),
            Route("/v1/chat/completions", endpoint.chat_completions, methods=["POST"]),
            Route("/v1/completions", endpoint.completions, methods=["POST"]),
        ],
        exception_handlers={ApiError: _refused, HTTPException: _no_such_route, Exception: _failed},
        lifespan=lifespan,
    )


class _Endpoint:
    triton: Triton

    def __init__(self, description: EndpointDescription, root: str) -> None:
        self._about, self._root = description, root or description.model
        self._template = ChatTemplate(description.chat, description.chat_template_arguments)
        self._most_bytes = BODY_BYTES + BODY_BYTES_PER_TOKEN * description.maximum_tokens_per_request

    async def health(self, _: Request) -> Response:
        ready = await self.triton.is_ready()
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        self._require_model(request.path_params["model"])
        return JSONResponse(self._card())

    async def chat_completions(self, request: Request) -> ASGIApp:
        asked = read(ChatRequest, await self._body(request))
        self._require_model(asked.model)
        messages = [message.for_template() for message in asked.messages]
        prompt = self._template.render(
            messages, asked.tools if asked.offers_tools else None, asked.chat_template_kwargs
        )
        return self._answer(asked, [{"text_input": prompt, "add_special_tokens": False}])

    async def completions(self, request: Request) -> ASGIApp:
        asked = read(CompletionRequest, await self._body(request))
        self._require_model(asked.model)
        more: dict[str, Any] = {"echo": True} if asked.echo else {}
        names = ["text_input" if isinstance(prompt, str) else "input_ids" for prompt in asked.prompt]
        for field, name in {"echo": "echo" if asked.echo else "", "prompt": names[0]}.items():
            if name not in {"", "text_input", *self._about.features}:
                raise cannot(field)
        prompts = [{name: prompt, **more} for name, prompt in zip(names, asked.prompt, strict=True)]
        return self._answer(asked, prompts)

    def _answer(self, asked: Asked, prompts: Sequence[Mapping[str, Any]]) -> ASGIApp:
        common = asked.inputs(self._about.sampling, self._about.features)
        requests = []
        for prompt in prompts:
            for number in range(asked.n):
                seed = {"seed": common["seed"] + number} if "seed" in common else {}
                requests.append({**prompt, **common, **seed})
        answer = Answer(asked, len(requests), self._about)
        return _Answering(
            answer, generate_all(self.triton, requests, self._about.maximum_sequences), stream=asked.stream
        )

    def _card(self) -> dict[str, Any]:
        about = self._about
        return {
            "id": about.model,
            "object": "model",
            "created": _CREATED,
            "owned_by": "llm-pipeline",
            "root": self._root,
            "max_model_len": about.maximum_tokens_per_request,
        }

    def _require_model(self, name: str | None) -> None:
        if name not in {None, self._about.model}:
            message = f"the model {str(name)[:200]!r} is not served here; GET /v1/models lists what is"
            raise ApiError(message, status=404, param="model", code="model_not_found")

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._most_bytes:
                raise ApiError(f"the body is larger than {self._most_bytes:,} bytes", status=413)
        return bytes(body)


class _Answering:
    """The response of an answer: made while it is sent, and given up when the client leaves."""

    def __init__(self, answer: Answer, pieces: AsyncGenerator[tuple[int, list[Piece]]], *, stream: bool) -> None:
        self._answer, self._pieces, self._stream = answer, pieces, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it runs

        async def leave() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            task.cancel()

        leaving = asyncio.create_task(leave())
        try:
            async with contextlib.aclosing(self._pieces):
                if self._stream:
                    await self._send_events(send)
                else:
                    async for number, pieces in self._pieces:
                        self._answer.take(number, pieces)
                    await JSONResponse(self._answer.whole())(scope, receive, send)
        except asyncio.CancelledError:
            if not leaving.done() or task.uncancel():  # somebody else's
                raise
        finally:
            leaving.cancel()

    async def _send_events(self, send: Send) -> None:
        """Send server-sent events. An answer that fails half-way ends with an error and without [DONE]."""

        async def tell(events: bytes, *, more: bool = True) -> None:
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": more})

        number, pieces = await anext(self._pieces)  # an error before it is an answer of its own
        await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        await tell(self._answer.opening() + self._answer.take(number, pieces))
        try:
            async for number, pieces in self._pieces:
                await tell(self._answer.take(number, pieces))
            ending = self._answer.ending()
        except ApiError as error:
            log.warning("a stream broke", status=error.status, reason=str(error)[:200])
            ending = event(error.document())
        await tell(ending, more=False)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # noqa: S101 - registered for nothing else
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("a request failed", path=request.url.path, status=error.status, reason=str(error)[:200])
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else None
    return JSONResponse(error.document(), error.status, headers)


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(ApiError(message, status=error.status_code).document(), error.status_code, error.headers)


async def _failed(_: Request, __: Exception) -> Response:
    return JSONResponse(ApiError("an error of the endpoint; its log says more", status=500).document(), 500)

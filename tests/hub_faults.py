"""Faults of a hub, or of the network before it, that tests inject into the demo's hub.

A fault ends after `times` answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.demo.hub import Handler

_CHUNK = 16 * 1024
_FOR_EVER = 3600.0


class Fault(Frozen):
    """A kind of wrong answer, and the requests that get it.

    Attributes:
        kind: `cut` closes the connection after `after_bytes` of the body; `short` ends the body there as if it were
            whole; `status` answers `status`; `corrupt` sends wrong bytes of the right size; `slow` sends
            `bytes_per_second`; `unanswered` does what was asked and closes the connection; `hang` does nothing until
            the sender goes away.
        path_ends_with: Which requests get it, by the end of the URL's path.
        method: Which requests get it, by method; None for all.
        times: How many answers are wrong.
        retry_after_seconds: `Retry-After` header of a `status` fault.
        headers: More headers of a `status` fault.
        body: Of a `status` fault.
    """

    kind: Literal["cut", "short", "status", "corrupt", "slow", "unanswered", "hang"]
    path_ends_with: str = ""
    method: Literal["GET", "HEAD", "POST", "PUT"] | None = "GET"
    times: int = Field(default=1, ge=1)
    after_bytes: int = Field(default=0, ge=0)
    status: int = Field(default=503, ge=200, le=599)
    retry_after_seconds: int | None = None
    headers: dict[str, str] = Field(default={})
    body: str = ""
    bytes_per_second: int = Field(default=65536, ge=1)


@dataclass
class Faults:
    """The faults still to come, and a record of every request's method, path and `Range`."""

    waiting: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def take(self, request: web.Request) -> Fault | None:
        """The first fault that meets the request, used up by one."""
        for index, fault in enumerate(self.waiting):
            if fault.method in (None, request.method) and request.path.endswith(fault.path_ends_with):
                self.waiting[index : index + 1] = (
                    [fault.model_copy(update={"times": fault.times - 1})] if fault.times > 1 else []
                )
                return fault
        return None


def fault_middleware(faults: Faults) -> Callable[[web.Request, Handler], Any]:
    """An aiohttp middleware that records every request and lets the faults happen."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        faults.requests.append((request.method, request.path, request.headers.get("Range")))
        fault = faults.take(request)
        if fault is None:
            return await handler(request)
        if fault.kind == "status":
            retry = fault.retry_after_seconds
            wait = {} if retry is None else {"Retry-After": str(retry)}
            return web.Response(status=fault.status, headers=fault.headers | wait, text=fault.body)
        if fault.kind == "hang":
            await asyncio.sleep(_FOR_EVER)
        if fault.kind == "unanswered":
            answer = await handler(request)
            if request.transport is not None:
                request.transport.close()
            return answer
        return await _send_faulty(request, await handler(request), fault)

    return middleware


async def _send_faulty(request: web.Request, answer: web.StreamResponse, fault: Fault) -> web.StreamResponse:
    """Send a file answer ourselves, wrongly."""
    if not isinstance(answer, web.FileResponse):
        return answer
    data = answer._path.read_bytes()
    start = request.http_range.start if request.headers.get("Range") else None
    body = bytearray(data[start or 0 :])
    if fault.kind == "corrupt":
        body[len(body) // 2] ^= 0xFF
    end = min(len(body), fault.after_bytes) if fault.kind in ("cut", "short") else len(body)
    response = web.StreamResponse(status=200 if start is None else 206, headers=answer.headers)
    response.content_length = end if fault.kind == "short" else len(body)
    if start is not None:
        response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    await response.prepare(request)
    for offset in range(0, end, _CHUNK):
        chunk = body[offset : min(offset + _CHUNK, end)]
        await response.write(chunk)
        if fault.kind == "slow":
            await asyncio.sleep(len(chunk) / fault.bytes_per_second)
    if fault.kind == "cut" and request.transport is not None:
        request.transport.close()
        return response
    await response.write_eof()
    return response

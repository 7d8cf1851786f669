"""Whether bad requests are refused with a reason, and nothing worse happens."""

from __future__ import annotations

import json
from http import HTTPStatus

import aiohttp

from llm_pipeline.base.verdict import Evidence
from llm_pipeline.serving.client import read_body
from llm_pipeline.serving.probing.served import Served, all_right
from llm_pipeline.serving.protocols import reason_in

_JSON = {"Content-Type": "application/json"}
_CHARACTERS_A_TOKEN = 16


async def bad_requests_are_refused(served: Served) -> Evidence:
    """Whether malformed and over-long requests are refused, each with an error text."""
    prompt = "1 " * (served.context * _CHARACTERS_A_TOKEN // 2)
    bodies = served.client.protocol.bad_bodies(prompt)
    wrong = [f"{what}: {fault}" for what, body in bodies.items() if (fault := await _refusal_fault(served, body))]
    return all_right("bad requests are refused with a reason", len(bodies), wrong)


async def _refusal_fault(served: Served, body: bytes) -> str:
    """What is wrong with the refusal of a bad request; empty when it is a clear one."""
    try:
        async with served.client.session.post(served.whole_url, data=body, headers=_JSON) as answer:
            text = await read_body(answer)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return f"no answer at all ({type(error).__name__})"
    if answer.status < HTTPStatus.BAD_REQUEST:
        return f"HTTP {answer.status}"  # Triton itself answers 500 to a body that is not JSON
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return f"HTTP {answer.status} without a reason"
    return "" if reason_in(document) else f"HTTP {answer.status} without a reason"

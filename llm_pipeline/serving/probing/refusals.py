"""Whether bad requests are refused with a reason, and nothing worse happens."""

from __future__ import annotations

import json
from http import HTTPStatus

import aiohttp

from llm_pipeline.base.verdict import Evidence
from llm_pipeline.serving.client import read_body
from llm_pipeline.serving.probing.served import Served, all_right

_ABSURD_TOKENS = 2_000_000_000
_CHARACTERS_A_TOKEN = 16


async def bad_requests_are_refused(served: Served) -> Evidence:
    """Malformed and over-long requests are refused, each with an error text."""
    prompt = "1 " * (served.context * _CHARACTERS_A_TOKEN // 2)
    bodies: dict[str, bytes] = {
        "not JSON": b"{",
        "no prompt": json.dumps({"max_tokens": 4}).encode(),
        "an empty prompt": json.dumps({"text_input": "", "max_tokens": 4}).encode(),
        "max_tokens of the wrong type": json.dumps({"text_input": "1", "max_tokens": "many"}).encode(),
        "max_tokens far too large": json.dumps({"text_input": "1", "max_tokens": _ABSURD_TOKENS}).encode(),
        "a prompt far too long": json.dumps({"text_input": prompt, "max_tokens": 4}).encode(),
    }
    wrong = [f"{what}: {fault}" for what, body in bodies.items() if (fault := await _refusal_fault(served, body))]
    return all_right("bad requests are refused with a reason", len(bodies), wrong)


async def _refusal_fault(served: Served, body: bytes) -> str:
    """What is wrong with the refusal of a bad request; empty when it is a clear one."""
    try:
        async with served.client.session.post(f"{served.model_url}/generate", data=body) as answer:
            text = await read_body(answer)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return f"no answer at all ({type(error).__name__})"
    if answer.status < HTTPStatus.BAD_REQUEST:
        return f"HTTP {answer.status}"  # Triton itself answers 500 to a body that is not JSON
    try:
        reason = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status} without a reason"
    return "" if reason else f"HTTP {answer.status} with an empty reason"

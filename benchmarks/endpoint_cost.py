"""What OpenAI's API costs beside Triton's own `generate_stream`, at the same server in the same run.

    .envs/control/bin/python benchmarks/endpoint_cost.py [--checkpoint DIR]

One engine is served, and one small client asks it by both APIs. For the time to the first token, each request by the
one is followed by the same one by the other, with nothing else at the server. For the throughput, users who never stop
asking have it by turns. The goals are judged by medians. Two models, each with its goals: the demo's, of half a million
parameters, whose tokens cost less than their way to the client, and SmolLM2-135M-Instruct. One line a goal; exit code 1
when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from cpu_engines import demo_model, our_server
from goals import at_least, at_most

from llm_pipeline.demo.services import CHAT, TINY

USERS, TOKENS = 32, 32
PROMPT = "Zoe has 7 apples and buys 5 more in shop {}. How many are there?"
Ask = tuple[str, Mapping[str, Any]]
"""A URL, and the body that all its requests have beside the prompt, whose name is the value None."""


async def first_token(session: aiohttp.ClientSession, ask: Ask, prompt: str) -> float:
    """Seconds to the first piece of one answer, which is read to its end."""
    url, body = ask
    given = {name: prompt if value is None else value for name, value in body.items()}
    began, seconds = time.perf_counter(), 0.0
    async with session.post(url, json=given) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.startswith(b"data:") and not seconds:
                seconds = time.perf_counter() - began
    return seconds


async def throughput(session: aiohttp.ClientSession, ask: Ask, seconds: float) -> float:
    """Tokens a second of users who ask again as soon as they are answered."""
    end, answers = time.perf_counter() + seconds, 0

    async def user(number: int) -> None:
        nonlocal answers
        while time.perf_counter() < end:
            await first_token(session, ask, PROMPT.format(f"{number}-{answers}"))
            answers += 1

    began = time.perf_counter()
    await asyncio.gather(*map(user, range(USERS)))
    return answers * TOKENS / (time.perf_counter() - began)


async def measure(model: str, apis: Mapping[str, Ask], options: argparse.Namespace) -> list[bool]:
    """Ask, print the figures and the goals."""
    first: dict[str, list[float]] = {api: [] for api in apis}
    rates: dict[str, list[float]] = {api: [] for api in apis}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for number in range(-10, options.requests):  # the first ones warm up
            for api, ask in list(apis.items())[:: 1 if number % 2 else -1]:
                seconds = await first_token(session, ask, PROMPT.format(number))
                first[api] += [seconds] if number >= 0 else []
        for turn in range(options.turns):
            for api, ask in list(apis.items())[:: 1 if turn % 2 else -1]:
                rates[api].append(await throughput(session, ask, options.seconds))
    for api in apis:
        middle, rate = 1000 * float(np.median(first[api])), float(np.median(rates[api]))
        print(
            f"{model}: {api:<7} first token {middle:6.1f} ms at p50; {rate:8.0f} tokens/s of {USERS} users", flush=True
        )
    later = [1000 * (ours - theirs) for ours, theirs in zip(first["OpenAI"], first["Triton"], strict=True)]
    share = float(np.median(rates["OpenAI"]) / np.median(rates["Triton"]))
    return [
        at_most(f"{model}: first token later than Triton's, p50 of pairs", float(np.median(later)), 3, "ms"),
        at_least(f"{model}: throughput beside Triton's", share, 0.97),
    ]


def main() -> int:
    """Start the server and measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a Hugging Face checkpoint in place of the two models")
    parser.add_argument("--requests", type=int, default=100, help="pairs for the time to the first token")
    parser.add_argument("--turns", type=int, default=5, help="windows of each API for the throughput")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of one window")
    options = parser.parse_args()
    models = {"its model": options.checkpoint} if options.checkpoint else {}
    models = models or {model.id.rpartition("/")[2]: demo_model(model) for model in (TINY, CHAT)}
    met = [met for name, checkpoint in models.items() for met in of_model(name, checkpoint, options)]
    return 0 if all(met) else 1


def of_model(name: str, checkpoint: Path, options: argparse.Namespace) -> list[bool]:
    """Serve a model and measure; returns which goals were met."""
    with tempfile.TemporaryDirectory(prefix="endpoint-cost-") as scratch, ExitStack() as stack:
        server = our_server(stack, checkpoint, 1, Path(scratch))
        common = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        apis: dict[str, Ask] = {
            "Triton": (f"{server.http_url}/v2/models/llm/generate_stream", {"text_input": None, **common}),
            "OpenAI": (f"{server.endpoint.url}/v1/completions", {"prompt": None, **common}),
        }
        return asyncio.run(measure(name, apis, options))


if __name__ == "__main__":
    sys.exit(main())

"""How the double of OpenAI's API (`openai_server.py`) is asked by our own client."""

from __future__ import annotations

import asyncio
from typing import Any

from openai_server import OpenAiDouble

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import GenerationClient, GenerationRequest


def at(server: OpenAiDouble, **changes: Any) -> Endpoint:
    """Where it answers."""
    return Endpoint(**{"url": server.url, "metrics_url": server.metrics_url, "openai_model": "llm", **changes})


def golden_of(server: OpenAiDouble, count: int, tokens: int) -> list[GoldenPrompt]:
    """What it answers now to so many prompts."""

    async def ask() -> list[GoldenPrompt]:
        async with GenerationClient.of(at(server)) as client:
            prompts = [f"a{number} b{number}" for number in range(count)]
            texts = [(await client.generate(GenerationRequest(prompt, tokens))).text for prompt in prompts]
        answers = zip(prompts, texts, strict=True)
        return [GoldenPrompt(prompt=p, completion=t, maximum_tokens=tokens) for p, t in answers]

    return asyncio.run(ask())

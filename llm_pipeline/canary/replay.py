"""Replayed traffic for canaries with too few users' requests: prompts of the workload, sent to the users' port.

The router splits them like users' requests, and they are judged together; the verdict says how many they were.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

log = get_logger(__name__)

_TIMEOUT_SECONDS = 60.0
_MOST_AT_ONCE = 64


class Replay:
    """Sends prompts of the workload.

    Args:
        endpoint: The users' port, asked as the slots' servers are.
        prompts: The prompts, sent in a random order, again and again.
        maximum_tokens: Of each answer.
        rate_per_second: How many are sent.
        trusted: The certificate of the users' port; None without TLS.

    Raises:
        ConfigError: The variable of a header is not set.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: Sequence[str],
        *,
        maximum_tokens: int,
        rate_per_second: float,
        trusted: str | None = None,
    ) -> None:
        self._endpoint, self._prompts, self._rate = endpoint, list(dict.fromkeys(prompts)), rate_per_second
        self._maximum_tokens = maximum_tokens
        self._headers = endpoint.headers()
        self._tls: ssl.SSLContext | None = None
        if trusted is not None:
            self._tls = ssl.create_default_context(cafile=trusted)
            self._tls.check_hostname = False  # reached by its IP address, which the certificate need not name
        self._sent: Counter[int] = Counter()  # by whole seconds since 1970: a canary may take days
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="replay", daemon=True)

    @contextmanager
    def sending(self) -> Iterator[Self]:
        """Send while the block runs; requests in flight at its end are not waited for."""
        log.info("replaying prompts of the workload", rate_per_second=self._rate)
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()

    def sent_since(self, moment: float) -> int:
        """How many were sent since a moment, in seconds since 1970."""
        return sum(count for second, count in list(self._sent.items()) if second >= int(moment))

    async def _run(self) -> None:
        draws, asked = random.Random(0), set[asyncio.Task[None]]()  # noqa: S311 - an order of prompts
        async with GenerationClient(
            self._endpoint.url,
            model=self._endpoint.openai_model,
            timeout_seconds=_TIMEOUT_SECONDS,
            headers=self._headers,
            tls=self._tls,
        ) as client:
            try:
                while not await asyncio.to_thread(self._stop.wait, 1.0 / self._rate):
                    if len(asked) < _MOST_AT_ONCE:
                        task = asyncio.create_task(self._ask(client, draws.choice(self._prompts)))
                        asked.add(task)
                        task.add_done_callback(asked.discard)
            finally:
                for task in asked:
                    task.cancel()

    async def _ask(self, client: GenerationClient, prompt: str) -> None:
        """Send one prompt; the router's log shows what became of it."""
        self._sent[int(time.time())] += 1
        await client.stream(GenerationRequest(prompt, self._maximum_tokens, allow_empty=True))

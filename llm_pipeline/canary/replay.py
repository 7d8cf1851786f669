"""Replayed traffic for canaries with too few users' requests: prompts of the workload, sent to the users' port.

The router splits them like users' requests, and they are judged together; the verdict says how many they were. They
stop while users send as much themselves.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import GenerationClient, GenerationRequest

log = get_logger(__name__)

_TIMEOUT_SECONDS = 60.0
_MOST_AT_ONCE = 64
_USERS_LOOK_SECONDS = 2.0


class Replay:
    """Sends prompts while its `with` block runs.

    Args:
        endpoint: The users' port, asked as the slots' servers are.
        prompts: The prompts, sent in a random order, again and again.
        maximum_tokens: Of each answer.
        rate_per_second: How many are sent.
        attempts: How many requests the router has sent to servers so far; None when it does not tell.
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
        attempts: Callable[[], int | None],
        trusted: str | None = None,
    ) -> None:
        self._endpoint, self._prompts, self._rate = endpoint, list(dict.fromkeys(prompts)), rate_per_second
        self._maximum_tokens, self._attempts = maximum_tokens, attempts
        self._headers, self._tls = endpoint.headers(), None if trusted is None else _context(trusted)
        self._sent: Counter[int] = Counter()  # by whole seconds since 1970: a canary may take days
        self._quiet = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="replay", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        log.info("replaying prompts of the workload while user traffic is low", rate_per_second=self._rate)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sending; requests in flight are not waited for."""
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
            watch = asyncio.create_task(self._watch_users())
            try:
                while not await asyncio.to_thread(self._stop.wait, 1.0 / self._rate):
                    if self._quiet and len(asked) < _MOST_AT_ONCE:
                        task = asyncio.create_task(self._ask(client, draws.choice(self._prompts)))
                        asked.add(task)
                        task.add_done_callback(asked.discard)
            finally:
                for task in (watch, *asked):
                    task.cancel()

    async def _ask(self, client: GenerationClient, prompt: str) -> None:
        """Send one prompt; the router's log shows what became of it."""
        self._sent[int(time.time())] += 1
        await client.stream(GenerationRequest(prompt, self._maximum_tokens, allow_empty=True))

    async def _watch_users(self) -> None:
        """Whether users send fewer requests than the policy wants.

        If a server fails, one request of ours makes several attempts, which look like users' requests once; the next
        count, without requests of ours, is right again.
        """
        before, sent = await asyncio.to_thread(self._attempts), self._sent.total()
        while True:
            await asyncio.sleep(_USERS_LOOK_SECONDS)
            now, mine = await asyncio.to_thread(self._attempts), self._sent.total()
            users = 0 if before is None or now is None else now - before - (mine - sent)
            self._quiet = users < self._rate * _USERS_LOOK_SECONDS
            before, sent = now, mine


def _context(trusted: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusted)
    context.check_hostname = False  # reached by its IP address, which the certificate need not name
    return context

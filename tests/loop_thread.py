"""An event loop in a thread of its own, for servers beside a test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Self


class LoopThread:
    """Runs from the beginning of a `with` block to its end; servers are made of it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.await_(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_all(self) -> None:
        """End what still waits, for clients that hang on."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def await_(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the loop's work gives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

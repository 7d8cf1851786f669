"""Asks a slow store, for no longer than a person at a terminal waits.

The threads are daemons: a connection that hangs delays neither the answer nor the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from llm_pipeline.base.errors import Transient

_THREADS = 8

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class BackgroundCall(Generic[Answer]):
    """Work in a thread that starts now. Its answer is awaited for `seconds` at most; None waits without limit."""

    def __init__(self, work: Callable[[], Answer], seconds: float | None = None) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._answer: list[Answer] = []
        self._error: BaseException | None = None
        self._thread.start()

    def answer(self) -> Answer:
        """The result of the work; its own errors are raised here.

        Raises:
            Transient: It has not ended in time. It goes on, and its answer is dropped.
        """
        spent = time.monotonic() - self._began
        self._thread.join(None if self._seconds is None else max(0.0, self._seconds - spent))
        if self._error is not None:
            raise self._error
        if not self._answer:
            raise Transient(f"no answer within {self._seconds:g} s")
        return self._answer[0]

    def _run(self, work: Callable[[], Answer]) -> None:
        try:
            self._answer.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
            self._error = error


def side_by_side(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Call the function for all items at once; returns the answers in order and raises the first error."""
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in range(len(items)):
        waiting.put(number)
    found: dict[int, Answer] = {}

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            found[number] = function(items[number])

    for one in [BackgroundCall(work) for _ in range(min(_THREADS, len(items)))]:
        one.answer()
    return [found[number] for number in range(len(items))]

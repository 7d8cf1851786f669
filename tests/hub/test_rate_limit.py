from __future__ import annotations

from itertools import pairwise
from threading import Thread

import pytest

from llm_pipeline.hub.transfer import RateLimit


class Clock:
    """A clock that only moves when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("sizes", [[100] * 50, [1, 499, 4500], [5000]])
def test_whatever_the_chunks_the_rate_is_kept(sizes: list[int]) -> None:
    clock = Clock()
    limit = RateLimit(1000.0, clock)
    for size in sizes:
        clock.now += limit.take(size)
    assert clock.now - 100.0 == pytest.approx(sum(sizes) / 1000.0)


def test_a_pause_earns_no_burst() -> None:
    clock = Clock()
    limit = RateLimit(1000.0, clock)
    clock.now += limit.take(100) + 3600.0
    assert limit.take(500) == pytest.approx(0.5)


def test_no_limit_never_waits() -> None:
    limit = RateLimit(None)
    assert [limit.take(10**12) for _ in range(3)] == [0.0, 0.0, 0.0]


def test_threads_wait_behind_each_other() -> None:
    limit, waits = RateLimit(1000.0, Clock()), []
    threads = [Thread(target=lambda: waits.append(limit.take(100))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(after - before == pytest.approx(0.1) for before, after in pairwise(sorted(waits)))

import select
import time
from collections.abc import Iterator

import pytest

from llm_pipeline.loadtest.client.serving import MonotonicTimer


@pytest.fixture
def timer() -> Iterator[MonotonicTimer]:
    made = MonotonicTimer()
    yield made
    made.close()


def woken(timer: MonotonicTimer, seconds: float) -> bool:
    return bool(select.select([timer.descriptor], [], [], seconds)[0])


def test_it_wakes_at_its_moment_and_not_before(timer: MonotonicTimer):
    moment = time.monotonic() + 0.0215
    timer.wake_at(moment)
    assert not woken(timer, 0)
    assert woken(timer, 1.0)
    assert time.monotonic() >= moment


def test_a_moment_that_has_passed_wakes_at_once_and_a_cleared_timer_sleeps(timer: MonotonicTimer):
    timer.wake_at(time.monotonic() - 1.0)
    assert woken(timer, 1.0)
    timer.clear()
    timer.clear()
    assert not woken(timer, 0)

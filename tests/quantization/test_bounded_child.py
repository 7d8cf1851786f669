"""What runs in a bounded child ends within its time and its memory, and changes nothing here."""

import os
import time

import pytest

from llm_pipeline.quantization.calibration import RaisedInChild, TookTooMuch, run_in_child

MIB = 2**20


def run(function, *, seconds=20.0, memory_bytes=512 * MIB):
    return run_in_child(function, seconds=seconds, memory_bytes=memory_bytes)


def test_its_result_comes_back_from_another_process():
    assert run(os.getpid) != os.getpid()
    assert run(lambda: ["é" * 300_000]) == ["é" * 300_000]


def test_a_loop_without_an_end_is_stopped():
    started = time.monotonic()
    with pytest.raises(TookTooMuch, match=r"after 0\.3 s"):
        run(lambda: all(iter(int, 1)) or [None for _ in iter(int, 1)], seconds=0.3)
    assert time.monotonic() - started < 60.0


def test_a_string_without_an_end_is_stopped():
    with pytest.raises(TookTooMuch, match="more than 64 MiB"):
        run(lambda: len("x" * 10**10), memory_bytes=64 * MIB)


def test_an_exception_comes_back_as_one_of_ours():
    with pytest.raises(RaisedInChild, match="ZeroDivisionError: division by zero"):
        run(lambda: 1 / 0)


def test_a_child_that_is_killed_is_one_clear_error():
    with pytest.raises(TookTooMuch, match="killed"):
        run(lambda: os.kill(os.getpid(), 9))

"""What a thread beside the work meets: it is told in the log, and it ends neither the thread's use nor the work."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_pipeline.base.entry import entry_point
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.client.connection import Answer, Connections
from llm_pipeline.loadtest.client.messages import Target
from llm_pipeline.loadtest.server_metrics import ServerSampler
from llm_pipeline.store import open_store
from llm_pipeline.store.lease import Lease


def fault(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a fault")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def faults(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.exc_info and isinstance(one.exc_info[1], ZeroDivisionError)]


def test_a_lease_is_renewed_again_after_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}")
    with Lease(store, "leases/x.json", seconds=0.06) as lease:
        with monkeypatch.context() as patch:
            patch.setattr(lease, "_write", fault)
            until(lambda: faults(caplog))
        before = store.read_document("leases/x.json")
        until(lambda: store.read_document("leases/x.json") != before)
        lease.check()


def test_metrics_are_read_again_after_a_fault(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_pipeline.loadtest.server_metrics._INTERVAL_SECONDS", 0.005)
    metrics = ServerSampler(Endpoint(url="http://127.0.0.1:1"))
    readings = iter([None, fault, fault])
    read: list[str] = []

    def sample() -> None:
        (next(readings, None) or read.append)("a page")

    monkeypatch.setattr(metrics, "_sample", sample)
    with metrics:
        until(lambda: len(read) > 1)
    assert len(faults(caplog)) == 2


def test_a_request_of_the_load_test_ends_whatever_stops_its_connection() -> None:
    ended: list[object] = []
    connections = SimpleNamespace(_connect=fault, ended=ended.append, _target=Target("127.0.0.1", 1, "/"))
    answer = Answer(1, object(), 0.0, 0.0, 0.0)
    asyncio.run(Connections._connect_and_send(connections, answer, b""))
    assert ended == [answer]
    assert answer.detail == "ZeroDivisionError: a fault"


def test_a_thread_that_ends_by_an_exception_is_told_in_the_programs_log(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.excepthook

    @entry_point
    def main() -> None:
        thread = threading.Thread(target=fault, name="progress")
        thread.start()
        thread.join()

    assert main() == 0
    (record,) = faults(caplog)
    assert "progress" in record.getMessage()
    assert threading.excepthook is before

"""Two publishers of one artifact in S3: whatever the order of their requests, one whole artifact is there."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.config.store import Signing, StoreModel
from llm_pipeline.store.provenance import Provenance
from llm_pipeline.store.s3_blobs import connect


class Turns:
    """Lets one request pass at a time, in the order of a schedule; who is done is passed over."""

    def __init__(self, schedule: Sequence[int], publishers: int) -> None:
        self._schedule = list(schedule)
        self._active = set(range(publishers))
        self._changed = threading.Condition()

    def wait_for(self, publisher: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._next() == publisher, timeout=30)
            if self._schedule:
                self._schedule.pop(0)
            self._changed.notify_all()

    def done(self, publisher: int) -> None:
        with self._changed:
            self._active.discard(publisher)
            self._changed.notify_all()

    def _next(self) -> int:
        while self._schedule and self._schedule[0] not in self._active:
            self._schedule.pop(0)
        return self._schedule[0] if self._schedule else min(self._active)


@pytest.fixture
def clients(s3_config: StoreModel) -> list[Any]:
    return [connect(s3_config) for _ in range(2)]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("llm_pipeline.store.s3_blobs.PART_BYTES", 1000)
    monkeypatch.setattr("llm_pipeline.store.s3_blobs.WORKERS", 1)  # a schedule is of publishers, not of their threads
    directory = tmp_path / "weights"
    directory.mkdir()
    (directory / "model.bin").write_bytes(bytes(1500))
    (directory / "config.json").write_text("{}")
    return directory


@pytest.mark.slow
@settings(max_examples=4, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(st.integers(0, 1), min_size=40, max_size=60))
def test_any_interleaving_of_two_publishers_leaves_one_whole_artifact(
    s3_config: StoreModel, weights: Path, clients: list[Any], signing: Signing, schedule: list[int]
) -> None:
    config = s3_config.model_copy(update={"signing": signing}) if sum(schedule) % 2 else s3_config
    turns = Turns(schedule, len(clients))

    def publish(number: int) -> object:
        store, hook = S3Store(config), lambda **_given: turns.wait_for(number)
        store._blobs._connected = os.getpid(), clients[number]
        clients[number].meta.events.register("before-send.s3", hook)
        try:
            return store.publish("checkpoint", weights, Provenance(made_by=str(number)))
        finally:
            clients[number].meta.events.unregister("before-send.s3", hook)
            turns.done(number)

    with ThreadPoolExecutor(len(clients)) as pool:
        refs = list(pool.map(publish, range(len(clients))))
    store = S3Store(config)
    assert refs[0] == refs[1]
    assert [artifact.ref for artifact in store.artifacts()] == [refs[0]]
    assert store.verify(refs[0]) == []
    assert all(left.transfer for left in store.leftovers(timedelta(seconds=-5)))
    store.remove(refs[0])

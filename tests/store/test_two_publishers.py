"""Two publishers of one artifact, whose operations on the store come in any order: one whole artifact is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_pipeline.config.store import Signing, StoreModel
from llm_pipeline.store import open_store
from llm_pipeline.store.blobs import Blobs
from llm_pipeline.store.provenance import Provenance

PUBLISHERS = range(2)
OPERATIONS = {"get", "put", "list", "delete", "delete_all", "upload", "sha256", "stated_sha256"}


class Turns:
    """Lets one operation pass at a time, in the order of a schedule; who is done is passed over."""

    def __init__(self, schedule: Sequence[int]) -> None:
        self._schedule = list(schedule)
        self._active = set(PUBLISHERS)
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


class Stepped:
    """Blobs of which each operation waits for its publisher's turn."""

    def __init__(self, blobs: Blobs, wait: Callable[[], None]) -> None:
        self._blobs, self._wait = blobs, wait

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._blobs, name)
        if name not in OPERATIONS:
            return operation

        def stepped(*arguments: Any, **options: Any) -> Any:
            self._wait()
            return operation(*arguments, **options)

        return stepped


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_pipeline.store.blobs._BACKOFF_UNIT_SECONDS", 0.001)


@settings(max_examples=12, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(st.integers(0, 1), min_size=40, max_size=60))
@pytest.mark.usefixtures("quick")
def test_any_interleaving_of_two_publishers_leaves_one_whole_artifact(
    config: StoreModel, weights: Path, signing: Signing, schedule: list[int]
) -> None:
    config = config.model_copy(update={"signing": signing}) if sum(schedule) % 2 else config
    turns = Turns(schedule)

    def publish(number: int) -> object:
        store = open_store(config)
        store._blobs = store._seals._blobs = Stepped(store._blobs, lambda: turns.wait_for(number))
        try:
            return store.publish("checkpoint", weights, Provenance(made_by=str(number)))
        finally:
            turns.done(number)

    with ThreadPoolExecutor(len(PUBLISHERS)) as pool:
        refs = list(pool.map(publish, PUBLISHERS))
    store = open_store(config)
    assert refs[0] == refs[1]
    assert [artifact.ref for artifact in store.artifacts()] == [refs[0]]
    assert store.verify(refs[0]) == []
    assert all(left.transfer for left in store.leftovers(timedelta(seconds=-5)))
    store.remove(refs[0])

"""Two publishers of one key, stepped through the store's operations in every order that hypothesis can think of."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.records import ArtifactRef

_STEPS = ("open", "rename", "replace", "mkdir", "fsync", "unlink", "utime")
schedules = st.lists(st.integers(0, 1), min_size=80, max_size=80)  # without a least size they are about five long
quick = settings(max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck))


class Stage:
    """Runs threads one step at a time: between two steps, a thread waits until the schedule names it."""

    def __init__(self) -> None:
        self._waiting: dict[threading.Thread, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def run(self, schedule: Sequence[int], actors: Sequence[Callable[[], None]]) -> None:
        threads = [threading.Thread(target=self._act, args=(actor,)) for actor in actors]
        self._waiting = {thread: threading.Semaphore(0) for thread in threads}
        for thread in threads:
            thread.start()
        for choice in itertools.chain(schedule, itertools.cycle(range(len(actors)))):
            if threads[choice].is_alive():
                self._waiting[threads[choice]].release()
                self._back.acquire()
                if threads[choice] not in self._waiting:
                    threads[choice].join()
            if not self._waiting:
                break
        if self._errors:
            raise self._errors[0]

    def step(self) -> None:
        """The end of a step, in a thread that is on the stage; others go on as they like."""
        if (gate := self._waiting.get(threading.current_thread())) is not None:
            self._back.release()
            gate.acquire()

    def _act(self, actor: Callable[[], None]) -> None:
        self._waiting[threading.current_thread()].acquire()
        try:
            actor()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            self._errors.append(error)
        finally:
            del self._waiting[threading.current_thread()]
            self._back.release()

    @contextmanager
    def set(self) -> Iterator[None]:
        """Make each operation of the system that the store uses a step, and waiting for a lock many."""
        flock = fcntl.flock

        def stepped(operation: Callable[..., object]) -> Callable[..., object]:
            def run(*arguments: object, **named: object) -> object:
                self.step()
                return operation(*arguments, **named)

            return run

        def stepped_flock(descriptor: int, operation: int) -> None:
            while True:
                self.step()
                try:
                    return flock(descriptor, operation | fcntl.LOCK_NB)
                except BlockingIOError:
                    if threading.current_thread() not in self._waiting:
                        raise

        with (
            mock.patch.multiple(os, **{name: stepped(getattr(os, name)) for name in _STEPS}),
            mock.patch.object(fcntl, "flock", stepped_flock),
        ):
            yield


@contextmanager
def _store() -> Iterator[LocalStore]:
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as root:
        yield LocalStore(f"file://{root}/store")


def _made(store: LocalStore, name: str, content: bytes) -> Path:
    directory = store.root.parent / name
    (directory / "sub").mkdir(parents=True)
    (directory / "model.bin").write_bytes(content)
    (directory / "sub" / "config.json").write_bytes(b"{}")
    return directory


@quick
@given(schedules)
def test_two_publishers_of_the_same_content_leave_one_whole_artifact_and_nothing_else(schedule: list[int]) -> None:
    with _store() as store:
        directories = [_made(store, name, b"same") for name in ("one", "two")]
        refs: list[ArtifactRef] = []
        stage = Stage()
        with stage.set():
            stage.run(schedule, [lambda d=d: refs.append(store.publish("checkpoint", d)) for d in directories])
        assert refs[0] == refs[1]
        assert [stored.ref for stored in store.artifacts()] == [refs[0]]
        assert store.verify(refs[0]) == []
        assert store.leftovers(timedelta(0)) == []

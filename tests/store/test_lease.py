import multiprocessing
import os
import signal
import socket
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import Transient
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.store import StoreModel
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.store import open_store
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost, LeaseState


def _hold(uri: str, held: Event) -> None:
    with Lease(open_store(uri), "leases/work.json", seconds=3600.0):
        held.set()
        time.sleep(60)


def test_the_lease_of_a_killed_owner_is_taken_over_at_once(store: LocalStore) -> None:
    held = multiprocessing.Event()
    owner = multiprocessing.Process(target=_hold, args=(store.uri, held))
    owner.start()
    assert held.wait(20)
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    with Lease(store, "leases/work.json") as lease:
        assert lease.epoch == 2


def _conclude_when_told(config: StoreModel, held: Event, told: Event, ended: "multiprocessing.Queue[str]") -> None:
    try:
        with Lease(open_store(config), "stages/key.json", seconds=2.0) as lease:
            held.set()
            told.wait(60)
            lease.conclude({"by": "the one that was frozen"})
            ended.put("concluded")
    except LeaseLost:
        ended.put("lost")


def test_a_frozen_owner_that_wakes_up_after_a_takeover_cannot_conclude(config: StoreModel) -> None:
    held, told = multiprocessing.Event(), multiprocessing.Event()
    ended: multiprocessing.Queue[str] = multiprocessing.Queue()
    owner = multiprocessing.Process(target=_conclude_when_told, args=(config, held, told, ended))
    owner.start()
    assert held.wait(30)
    assert owner.pid is not None
    store = open_store(config)
    assert store.read_document("stages/key.json") is not None  # the first call to S3 takes longest
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LeaseHeld), Lease(store, "stages/key.json"):
            pass
        time.sleep(2.1)
        with Lease(store, "stages/key.json") as lease:
            assert lease.epoch == 2
            os.kill(owner.pid, signal.SIGCONT)
            told.set()
            assert ended.get(timeout=30) == "lost"
            lease.conclude({"by": "the one that took over"})
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.join()
    document = store.read_document("stages/key.json")
    assert document is not None
    assert document.value["conclusion"] == {"by": "the one that took over"}


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()], ids=["another host", "another container"])
def test_a_lease_whose_owner_cannot_be_seen_from_here_is_taken_over_when_it_expires(
    store: LocalStore, host: str
) -> None:
    no_process = 2**22 + 1
    state = LeaseState(
        host=host, pid=no_process, start_ticks=1, pids="boot pid:[1]", epoch=3, expires_at=time.time() + 0.5
    )
    store.write_document("leases/work.json", state.model_dump(), None)
    with pytest.raises(LeaseHeld), Lease(store, "leases/work.json"):
        pass
    time.sleep(0.6)
    with Lease(store, "leases/work.json") as lease:
        assert lease.epoch == 4


class Nothing(ConfigModel):
    """The stage of this test needs no configuration."""


def _counted(context: StageContext[Nothing]) -> StageOutput:
    with (Path(context.request.work_root) / "runs").open("a") as runs:
        runs.write(f"{os.getpid()}\n")
    stall = Path(context.request.work_root) / "stall"
    if stall.exists():
        stall.unlink()
        time.sleep(60)
    time.sleep(0.5)  # long enough for the other one to come
    output = context.workdir / "out"
    output.mkdir()
    (output / "who").write_text(str(os.getpid()))
    return StageOutput(artifacts={"who": Produced("text", output)})


def _execute(request: StageRequest, ended: "multiprocessing.Queue[str]") -> None:
    ended.put(execute(request).model_dump_json())


@pytest.mark.parametrize("first_is_killed", [False, True])
def test_of_two_processes_that_want_one_stage_key_one_computes_and_the_other_waits_and_reuses(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_is_killed: bool
) -> None:
    stage = Stage(name="count", version=1, config=Nothing, run=_counted)
    monkeypatch.setattr("llm_pipeline.release.execute.load_stage", lambda _name: stage)
    monkeypatch.setattr("llm_pipeline.store.lease._POLL_SECONDS", 0.1)
    ended: multiprocessing.Queue[str] = multiprocessing.Queue()
    runs = tmp_path / "runs"
    if first_is_killed:
        (tmp_path / "stall").touch()

    def start(release: str) -> multiprocessing.Process:
        request = StageRequest(release_id=release, stage="count", config={}, store=store.uri, work_root=str(tmp_path))
        process = multiprocessing.Process(target=_execute, args=(request, ended))
        process.start()
        return process

    first = start("r1")
    while not runs.exists():
        time.sleep(0.02)
    second = start("r2")
    if first_is_killed:
        time.sleep(0.3)
        first.kill()
        results = [StageResult.model_validate_json(ended.get(timeout=30))]
    else:
        results = [StageResult.model_validate_json(ended.get(timeout=30)) for _ in range(2)]
    first.join()
    second.join()
    assert sorted(result.reused for result in results) == ([False] if first_is_killed else [False, True])
    assert len({result.artifacts["who"].digest for result in results}) == 1
    assert len(runs.read_text().splitlines()) == (2 if first_is_killed else 1)
    assert len(list(store.artifacts())) == 1


@pytest.mark.parametrize(
    ("fault", "served"),
    [(Transient("no answer"), False), (Transient("no answer"), True), (ZeroDivisionError("a fault"), False)],
    ids=["outage", "answers lost", "fault"],
)
def test_a_lease_is_renewed_again_after_a_store_that_failed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, fault: Exception, *, served: bool
) -> None:
    failed, write = threading.Event(), store.write_document

    def fail(*given: Any) -> str:
        if served:
            write(*given)
        failed.set()
        raise fault

    with Lease(store, "leases/work.json", seconds=0.06) as lease:
        with monkeypatch.context() as patched:
            patched.setattr(store, "write_document", fail)
            assert failed.wait(30)
        before, deadline = store.read_document("leases/work.json"), time.monotonic() + 30
        while store.read_document("leases/work.json") == before:
            assert time.monotonic() < deadline, "nobody renews it any more"
            time.sleep(0.01)
        lease.check()


def test_an_owner_that_lost_its_lease_is_told_before_it_publishes(store: LocalStore) -> None:
    with Lease(store, "leases/work.json", seconds=0.3) as lease:
        document = store.read_document("leases/work.json")
        assert document is not None
        store.write_document("leases/work.json", document.value | {"epoch": 9}, document.revision)
        time.sleep(0.4)
        with pytest.raises(LeaseLost):
            lease.check()

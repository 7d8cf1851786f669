import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from llm_pipeline.store import LocalStore, open_store
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(f"file://{tmp_path / 'store'}")


def _hold(uri: str, held: "multiprocessing.synchronize.Event", seconds: float) -> None:
    with Lease(open_store(uri), "leases/work.json", seconds=seconds):
        held.set()
        time.sleep(60)


def test_a_second_owner_is_refused_while_the_first_works(store: LocalStore) -> None:
    with Lease(store, "leases/work.json"), pytest.raises(LeaseHeld), Lease(store, "leases/work.json"):
        pass


def test_a_lease_given_back_is_free_and_the_epoch_rises(store: LocalStore) -> None:
    with Lease(store, "leases/work.json") as first:
        pass
    with Lease(store, "leases/work.json") as second:
        assert second.epoch == first.epoch + 1


def test_the_lease_of_a_killed_owner_is_taken_over_at_once(store: LocalStore) -> None:
    held = multiprocessing.Event()
    owner = multiprocessing.Process(target=_hold, args=(store.uri, held, 3600.0))
    owner.start()
    assert held.wait(20)
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    with Lease(store, "leases/work.json") as lease:
        assert lease.epoch == 2


def test_a_frozen_owner_is_fenced_after_its_lease_expires(store: LocalStore) -> None:
    held = multiprocessing.Event()
    owner = multiprocessing.Process(target=_hold, args=(store.uri, held, 0.6))
    owner.start()
    assert held.wait(20)
    assert owner.pid is not None
    os.kill(owner.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LeaseHeld), Lease(store, "leases/work.json"):
            pass
        time.sleep(0.8)
        with Lease(store, "leases/work.json", seconds=60) as lease:
            assert lease.epoch == 2
            os.kill(owner.pid, signal.SIGCONT)
            time.sleep(0.5)
            lease.check()
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.join()


def test_an_owner_that_lost_its_lease_is_told_before_it_publishes(store: LocalStore) -> None:
    with Lease(store, "leases/work.json", seconds=0.3) as lease:
        document = store.read_document("leases/work.json")
        assert document is not None
        store.write_document("leases/work.json", document.value | {"epoch": 9}, document.revision)
        time.sleep(0.4)
        with pytest.raises(LeaseLost):
            lease.check()

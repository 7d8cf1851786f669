"""A person's word, given twice. Moving production itself, with its servers, is tested in `test_production`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from llm_pipeline.canary import way_back
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase, read_record, set_current_canary
from llm_pipeline.canary.way_back import take_back_canary, take_back_production
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.errors import ConfigError
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store.local import LocalStore
from llm_pipeline.store.pointers import Pointer, Pointers, read_pointers, write_pointers

MODEL = "demo/tiny"


def ports(first: int) -> dict[str, int]:
    return {"http": first, "grpc": first + 1, "metrics": first + 2}


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    place = {
        "staging": ports(18910), "blue": ports(18920), "green": ports(18930),
        "router": {"port": 18940, "admin_port": 18941},
    }  # fmt: skip
    return Deployment.model_validate(
        {
            "name": "here", "store": f"file://{tmp_path}/store", "work_root": str(tmp_path), "environments": {},
            "state_root": str(tmp_path / "state"), "triton_home": "", "places": {"cpu": place},
        }
    )  # fmt: skip


@pytest.fixture
def store(tmp_path, monkeypatch) -> LocalStore:
    """Release r2 serves and r1 served before; the servers and the router are not here, only their pointers move."""
    store = LocalStore(f"file://{tmp_path}/store")
    write_pointers(
        store, MODEL, "cpu", Pointers(production=pointer("r2", "green"), previous=pointer("r1", "blue")), None
    )

    def swap(store, _deployment, model_id, target):
        now, revision = read_pointers(store, model_id, target)
        swapped = Pointers(production=now.previous, previous=now.production)
        write_pointers(store, model_id, target, swapped, revision)
        return swapped

    monkeypatch.setattr(way_back, "rollback_production", swap)
    return store


def pointer(release: str, slot) -> Pointer:
    digest = release[-1] * 64
    repository = ArtifactRef(kind="model_repository", digest=digest)
    return Pointer(release_id=release, repository=repository, slot=slot, recipe="none", promoted_at=datetime.now(UTC))


def serving(store) -> str:
    return read_pointers(store, MODEL, "cpu")[0].production.release_id


def take_back(store, deployment, **options) -> str:
    take_back_production(store, deployment, MODEL, "cpu", by="anna: it answers nonsense", **options)
    return serving(store)


def test_asked_twice_it_is_done_once(store, deployment):
    assert take_back(store, deployment) == "r1"
    assert take_back(store, deployment) == "r1"


def test_to_go_forth_again_the_release_that_serves_is_named(store, deployment):
    take_back(store, deployment)
    assert take_back(store, deployment, leaving="r1") == "r2"
    with pytest.raises(ConfigError, match="r2 serves on cpu, not r1"):
        take_back(store, deployment, leaving="r1")


def test_one_that_died_before_anything_moved_is_done_by_the_next(store, deployment, monkeypatch):
    with monkeypatch.context() as dying:
        dying.setattr(way_back, "rollback_production", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            take_back(store, deployment)
    assert serving(store) == "r2"
    assert take_back(store, deployment) == "r1"


def test_a_release_that_was_promoted_since_can_be_taken_back_too(store, deployment):
    take_back(store, deployment)
    pointers, revision = read_pointers(store, MODEL, "cpu")
    promoted = Pointers(production=pointer("r3", "green"), previous=pointers.production)
    write_pointers(store, MODEL, "cpu", promoted, revision)
    assert take_back(store, deployment) == "r1"


def test_an_unfinished_canary_is_taken_back_and_production_stays(store, deployment):
    repository = ArtifactRef(kind="model_repository", digest="3" * 64)
    record = CanaryRecord(
        release_id="r3", target="cpu", repository=repository, stable="green", candidate="blue", began_at=0.0
    )
    CanaryJournal(store, "r3", "cpu").save(record)
    set_current_canary(store, "cpu", "r3")
    assert take_back_canary(store, deployment, "cpu", by="anna: slow") == "r3"
    assert take_back_canary(store, deployment, "cpu", by="anna: slow") is None
    ended = read_record(store, "r3", "cpu")
    assert ended.phase is Phase.ROLLED_BACK
    assert ended.events[-1].by == "anna: slow"
    assert serving(store) == "r2"


def test_a_place_that_is_none_and_a_first_release_are_refused(store, deployment):
    with pytest.raises(ConfigError, match="no place for 'gpu'"):
        take_back_canary(store, deployment, "gpu", by="anna")
    pointers, revision = read_pointers(store, MODEL, "cpu")
    write_pointers(store, MODEL, "cpu", Pointers(production=pointers.production), revision)
    with pytest.raises(ConfigError, match="no previous release"):
        take_back_production(store, deployment, MODEL, "cpu", by="anna")

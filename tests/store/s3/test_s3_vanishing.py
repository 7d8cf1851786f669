"""Files that vanish from S3 while an artifact of them is sealed: a retention takes them for a leftover of nobody's."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from s3_faults import Faults, after, is_a, then

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import StoreModel
from llm_pipeline.store import pending_deletion as condemned
from llm_pipeline.store.artifact_store import Leftover
from llm_pipeline.store.lease import Lease
from llm_pipeline.store.pending_deletion import RETENTION_LEASE, publish_spared, read_condemned, remove_unfinished

LISTING, MANIFEST, MARKER = (
    is_a("GET", list_type="2"),
    is_a("PUT", "_MANIFEST.json"),
    is_a("PUT", "_COMPLETE.json"),
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condemned, "_POLL_SECONDS", 0.005)


@pytest.fixture
def unfinished(store: S3Store, weights: Path, faults: Faults) -> ArtifactRef:
    """All files of a publication that was killed before it was sealed."""
    ref = store.publish("checkpoint", weights)
    store._bucket.delete(f"artifacts/{ref.kind}/{ref.digest}/_COMPLETE.json")
    faults.heal()
    return ref


def _leftover(ref: ArtifactRef) -> Leftover:
    return Leftover(name=f"artifacts/{ref.kind}/{ref.digest}", bytes=0, changed_at=datetime.now(UTC))


MOMENTS = [(after, LISTING, 0), (then, LISTING, 0), (after, LISTING, 1), (then, LISTING, 1), (after, MANIFEST, 0),
           (after, MARKER, 0)]  # fmt: skip


@pytest.mark.parametrize(("fault", "when", "number"), MOMENTS)
def test_a_publication_that_is_gone_on_with_is_whole_whenever_a_retention_removes_its_files(
    store: S3Store, faults: Faults, weights: Path, unfinished: ArtifactRef, *, fault: Any, when: Any, number: int
) -> None:
    store._bucket.delete(f"artifacts/{unfinished.kind}/{unfinished.digest}/_MANIFEST.json")
    retention = S3Store(store._bucket._config.model_copy(update={"endpoint": f"http://{faults.server}"}))
    faults.inject(fault(lambda: retention.remove_leftover(_leftover(unfinished))), when=when, skip=number)
    assert store.publish("checkpoint", weights) == unfinished
    assert faults.committed
    assert store.verify(unfinished) == store.check(unfinished) == []


@pytest.mark.parametrize("name", ["model.bin", "config.json"])
def test_a_removal_that_ends_after_the_seal_is_noticed(
    store: S3Store, s3_config: StoreModel, faults: Faults, weights: Path, name: str
) -> None:
    other = S3Store(s3_config)

    def remove() -> None:
        for item in other._bucket.list("artifacts/"):
            if item.name.endswith(name):
                other._bucket.delete(item.name)

    faults.inject(then(remove), when=MARKER)
    ref = store.publish("checkpoint", weights)
    assert store.verify(ref) == []


def test_files_that_keep_vanishing_are_a_transient_error_and_no_artifact(
    store: S3Store, s3_config: StoreModel, faults: Faults, weights: Path
) -> None:
    other = S3Store(s3_config)

    def remove() -> None:
        for item in other._bucket.list("artifacts/"):
            if item.name.endswith("model.bin"):
                other._bucket.delete(item.name)

    faults.inject(after(remove), when=LISTING, times=1000)
    with pytest.raises(Transient, match="keep vanishing"):
        store.publish("checkpoint", weights)
    faults.heal()
    assert list(store.artifacts()) == []


def test_a_removal_that_saw_no_seal_and_ends_after_a_publication_takes_nothing_from_anybody(
    store: S3Store, weights: Path, unfinished: ArtifactRef
) -> None:
    """The removal looked before the seal, and was held up until the publication had looked for the last time."""
    published: list[ArtifactRef] = []

    class HeldUp(S3Store):
        def remove_leftover(self, leftover: Leftover) -> None:
            publisher.start()
            publisher.join(1.0)
            self._bucket.delete_all([item.name for item in self._bucket.list(f"{leftover.name}/")])

    publisher = threading.Thread(target=lambda: published.append(publish_spared(store, "checkpoint", weights)))
    with Lease(store, RETENTION_LEASE):
        remove_unfinished(HeldUp(store._bucket._config), _leftover(unfinished))
    publisher.join(20)
    assert published == [unfinished]
    assert store.verify(unfinished) == []
    assert read_condemned(store) == {}


def test_a_removal_of_a_leftover_that_was_killed_is_finished_by_the_next_publication(
    store: S3Store, weights: Path, unfinished: ArtifactRef
) -> None:
    class Killed(S3Store):
        def remove_leftover(self, _leftover: Leftover) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_unfinished(Killed(store._bucket._config), _leftover(unfinished))
    assert publish_spared(store, "checkpoint", weights) == unfinished
    assert store.verify(unfinished) == []
    assert read_condemned(store) == {}

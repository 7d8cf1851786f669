"""Files that vanish from S3 while an artifact of them is sealed: a retention takes them for a leftover of nobody's."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from s3_faults import Faults, after, is_a, then

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.errors import Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.artifact_store import Leftover

LISTING, MANIFEST, MARKER = (
    is_a("GET", list_type="2"),
    is_a("PUT", "_MANIFEST.json"),
    is_a("PUT", "_COMPLETE.json"),
)


@pytest.fixture
def unfinished(store: S3Store, weights: Path, faults: Faults) -> ArtifactRef:
    """All files of a publication that was killed before it was sealed."""
    ref = store.publish("checkpoint", weights)
    store._blobs.delete(f"artifacts/{ref.kind}/{ref.digest}/_COMPLETE.json")
    faults.heal()
    return ref


def _leftover(ref: ArtifactRef) -> Leftover:
    return Leftover(name=f"artifacts/{ref.kind}/{ref.digest}", bytes=0, changed_at=datetime.now(UTC))


MOMENTS = [(after, LISTING, 0), (then, LISTING, 0), (after, LISTING, 1), (then, LISTING, 1), (after, MANIFEST, 0),
           (after, MARKER, 0)]  # fmt: skip


@pytest.mark.parametrize(("fault", "when", "number"), MOMENTS)
def test_a_publication_whose_files_a_retention_removes_meanwhile_is_whole_or_fails_and_the_next_one_is_whole(
    store: S3Store, faults: Faults, weights: Path, unfinished: ArtifactRef, *, fault: Any, when: Any, number: int
) -> None:
    store._blobs.delete(f"artifacts/{unfinished.kind}/{unfinished.digest}/_MANIFEST.json")
    retention = S3Store(store._blobs._config.model_copy(update={"endpoint": f"http://{faults.server}"}))
    faults.inject(fault(lambda: retention.remove_leftover(_leftover(unfinished))), when=when, skip=number)
    with suppress(Transient):  # it vanished while it was published
        store.publish("checkpoint", weights)
    if not store.exists(unfinished):
        assert store.publish("checkpoint", weights) == unfinished
    assert faults.committed
    assert store.verify(unfinished) == store.check(unfinished) == []


def test_an_old_artifact_is_renewed_by_who_publishes_it_again_and_then_not_removed(
    store: S3Store, weights: Path
) -> None:
    ref = store.publish("checkpoint", weights)
    (stored,) = store.artifacts()
    time.sleep(1.1)  # S3 tells seconds
    assert store.publish("checkpoint", weights) == ref
    assert not store.remove(ref, published_before=stored.published_at)
    assert store.verify(ref) == []
    assert store.renew(ref)
    assert store.remove(ref, published_before=datetime.now(UTC) + timedelta(days=1))
    assert not store.renew(ref)
    assert list(store._blobs.list("artifacts")) == []

"""What every artifact store promises, asked of each one: on a disk, and in S3 (a real S3 API server)."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import Signing, StoreModel
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE, SIGNATURE_FILE
from llm_pipeline.store.provenance import Provenance

WEIGHTS = 300_000
POINTERS = "pointers/m/cpu.json"


class Medium:
    """What a store keeps its files in, written to behind its back."""

    def __init__(self, config: StoreModel) -> None:
        self.config, self._blobs = config, open_store(config)._blobs

    def read(self, name: str) -> bytes:
        blob = self._blobs.get(name)
        assert blob is not None
        return blob.data

    def write(self, name: str, data: bytes) -> None:
        self._blobs.put(name, data)

    def delete(self, name: str) -> None:
        self._blobs.delete(name)


@pytest.fixture
def medium(config: StoreModel) -> Medium:
    return Medium(config)


also_in_parts = pytest.mark.parametrize("config", ["local", "s3 in parts"], indirect=True)


@pytest.fixture
def store(config: StoreModel) -> ArtifactStore:
    return open_store(config)


@pytest.fixture
def weights(weights: Path) -> Path:
    (weights / "empty").touch()
    return weights


def path_in(ref: ArtifactRef, path: str) -> str:
    return f"artifacts/{ref.kind}/{ref.digest}/{path}"


@also_in_parts
def test_what_is_published_is_fetched_whole(store: ArtifactStore, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    fetched = store.fetch(ref)
    for path in ("model.bin", "sub/config.json", "empty"):
        assert (fetched / path).read_bytes() == (weights / path).read_bytes()
    assert store.manifest(ref).size == WEIGHTS + 2
    assert store.exists(ref)
    assert store.verify(ref) == store.check(ref) == []


def test_equal_content_has_one_name_whoever_made_it(store: ArtifactStore, weights: Path) -> None:
    first = store.publish("checkpoint", weights, Provenance(made_by="one"))
    second = store.publish("checkpoint", weights, Provenance(made_by="two"))
    assert first == second
    assert store.manifest(first).provenance.made_by == "one"


@also_in_parts
@pytest.mark.parametrize("position", [0, WEIGHTS - 1])
def test_one_changed_byte_is_found_and_named(
    store: ArtifactStore, medium: Medium, weights: Path, position: int
) -> None:
    ref = store.publish("checkpoint", weights)
    data = bytearray(medium.read(path_in(ref, "model.bin")))
    data[position] ^= 1
    medium.write(path_in(ref, "model.bin"), bytes(data))
    for found in (store.verify(ref), store.check(ref)):
        assert [difference.path for difference in found] == ["model.bin"]
        assert "changed" in found[0].problem
    with pytest.raises(IntegrityError, match=r"model\.bin: changed"):
        store.fetch(ref)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty", None),
        (MANIFEST_FILE, None),
        (MANIFEST_FILE, b"{}"),
        (COMPLETE_FILE, None),
        ("backdoor.py", b""),
        ("sub/_MANIFEST.json", b""),
        (SIGNATURE_FILE, b"{}"),
    ],
)
def test_a_missing_and_an_added_file_are_found_and_named(
    store: ArtifactStore, medium: Medium, weights: Path, name: str, content: bytes | None
) -> None:
    ref = store.publish("checkpoint", weights)
    if content is None:
        medium.delete(path_in(ref, name))
    else:
        medium.write(path_in(ref, name), content)
    for found in (store.verify(ref), store.check(ref)):
        assert [difference.path for difference in found] == [name]
    with pytest.raises(IntegrityError, match=name):
        store.fetch(ref)


@also_in_parts
@pytest.mark.parametrize("content", [b"rubbish", b"", None], ids=["wrong", "torn", "missing"])
def test_a_damaged_artifact_is_complete_no_more_and_the_next_publication_replaces_it(
    store: ArtifactStore, medium: Medium, weights: Path, content: bytes | None
) -> None:
    ref = store.publish("checkpoint", weights)
    if content is None:
        medium.delete(path_in(ref, "model.bin"))
    else:
        medium.write(path_in(ref, "model.bin"), content)
    with pytest.raises(IntegrityError):
        store.fetch(ref)
    assert not store.exists(ref)
    assert store.publish("checkpoint", weights) == ref
    assert store.verify(ref) == []


@also_in_parts
def test_a_publication_repairs_damage_that_nobody_saw(store: ArtifactStore, medium: Medium, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    medium.write(path_in(ref, "model.bin"), os.urandom(WEIGHTS))
    medium.write(path_in(ref, "extra"), b"")
    assert store.publish("checkpoint", weights) == ref
    assert store.verify(ref) == []


def test_what_is_not_there_is_named_missing(store: ArtifactStore) -> None:
    ref = ArtifactRef(kind="checkpoint", digest="0" * 64)
    assert not store.exists(ref)
    assert [difference.problem for difference in store.check(ref)] == ["missing"]
    for read in (store.fetch, store.manifest):
        with pytest.raises(IntegrityError, match="missing"):
            read(ref)


def test_files_named_as_the_stores_own_are_not_published(store: ArtifactStore, weights: Path) -> None:
    before = store.publish("checkpoint", weights)
    (weights / COMPLETE_FILE).write_text("{}")
    (weights / MANIFEST_FILE).write_text("{}")
    assert store.publish("checkpoint", weights) == before
    assert store.verify(before) == []


def test_a_symbolic_link_is_refused(store: ArtifactStore, weights: Path) -> None:
    (weights / "link").symlink_to("/etc/passwd")
    with pytest.raises(IntegrityError, match="regular files"):
        store.publish("checkpoint", weights)
    assert list(store.artifacts()) == []


def test_an_empty_directory_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(IntegrityError, match="nothing to publish"):
        store.publish("checkpoint", tmp_path / "nothing")


def test_unusual_names_of_files_come_back(store: ArtifactStore, tmp_path: Path) -> None:
    names = ["ä ö/ü+%20&?=#.txt", "a b.json", "-", "~", "'\"", "[1]*", "\u2603/\U0001f600", ".hidden/.json"]
    for name in names:
        (tmp_path / "odd" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "odd" / name).write_text(name)
    ref = store.publish("checkpoint", tmp_path / "odd")
    assert store.verify(ref) == store.check(ref) == []
    assert all((store.fetch(ref) / name).read_text() == name for name in names)


def test_complete_artifacts_are_listed_until_they_are_removed(
    store: ArtifactStore, medium: Medium, weights: Path
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=2)
    refs = {store.publish(kind, weights) for kind in ("checkpoint", "engine")}
    incomplete = store.publish("model_repository", weights)
    medium.delete(path_in(incomplete, COMPLETE_FILE))
    found = list(store.artifacts())
    assert {artifact.ref for artifact in found} == refs
    assert all(before <= artifact.published_at <= datetime.now(UTC) for artifact in found)
    for ref in refs:
        store.remove(ref)
        store.remove(ref)
        assert not store.exists(ref)
        with pytest.raises(FileNotFoundError):
            store.read_file(path_in(ref, "empty"))
    assert list(store.artifacts()) == []


def test_leftovers_are_removed_once_they_are_old_and_artifacts_never(
    store: ArtifactStore, medium: Medium, weights: Path
) -> None:
    whole, broken = store.publish("checkpoint", weights), store.publish("engine", weights)
    medium.delete(path_in(broken, MANIFEST_FILE))
    with pytest.raises(IntegrityError):
        store.fetch(broken)
    assert store.leftovers(timedelta(hours=1)) == []
    leftovers = store.leftovers(timedelta(seconds=-2))
    assert len(leftovers) == 1
    assert leftovers[0].bytes >= WEIGHTS
    for _ in range(2):
        store.remove_leftover(leftovers[0])
    assert store.leftovers(timedelta(seconds=-2)) == []
    assert [artifact.ref for artifact in store.artifacts()] == [whole]
    assert store.verify(whole) == []


def test_a_document_is_written_only_at_the_revision_it_was_read(store: ArtifactStore) -> None:
    assert store.read_document(POINTERS) is None
    first = store.write_document(POINTERS, {"n": 1}, None)
    second = store.write_document(POINTERS, {"n": 2}, first)
    third = store.write_document(POINTERS, {"n": 1}, second)  # a value that came back is another revision
    for stale in (first, second, None):
        with pytest.raises(Conflict):
            store.write_document(POINTERS, {"n": 3}, stale)
    document = store.read_document(POINTERS)
    assert document is not None
    assert (document.value, document.revision) == ({"n": 1}, third)


def test_a_document_that_was_deleted_is_not_written_again_by_who_read_it(store: ArtifactStore) -> None:
    revision = store.write_document(POINTERS, {"n": 1}, None)
    for _ in range(2):
        store.delete_document(POINTERS)
    assert store.read_document(POINTERS) is None
    with pytest.raises(Conflict):
        store.write_document(POINTERS, {"n": 2}, revision)
    assert store.read_document(POINTERS) is None
    store.write_document(POINTERS, {"n": 3}, None)


@pytest.mark.parametrize(
    "name", ["../escape.json", "/etc/passwd", "a//b.json", "a/../b.json", ".hidden.json", "", "a\n"]
)
def test_a_name_cannot_leave_the_store(store: ArtifactStore, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name for the store"):
        store.write_document(name, {}, None)
    with pytest.raises(ConfigError, match="not a name for the store"):
        store.read_file(name)


def test_documents_below_a_prefix_are_listed(store: ArtifactStore) -> None:
    for name in ("releases/b/release.json", "releases/a/results/download.json", "releases/a.json", "releases-2/x.json"):
        store.write_document(name, {}, None)
    store.write_file("releases/a/report.html", b"")
    assert store.list_documents("releases") == [
        "releases/a.json",
        "releases/a/results/download.json",
        "releases/b/release.json",
    ]
    assert store.list_documents("releases/") == store.list_documents("releases")
    assert store.list_documents("nothing") == []


def test_an_unsigned_artifact_is_refused_until_it_is_published_again_and_signed(
    store: ArtifactStore, medium: Medium, weights: Path, signing: Signing
) -> None:
    ref = store.publish("checkpoint", weights)
    trusting = open_store(medium.config.model_copy(update={"signing": signing}))
    for found in (trusting.verify(ref), trusting.check(ref)):
        assert [difference.path for difference in found] == [SIGNATURE_FILE]
    with pytest.raises(IntegrityError, match="unsigned"):
        trusting.fetch(ref)
    assert store.verify(ref) == []  # it is not damaged: who requires no signature may still use it
    assert trusting.publish("checkpoint", weights) == ref
    assert trusting.verify(ref) == trusting.check(ref) == store.verify(ref) == []
    trusting.fetch(ref)


def test_nothing_is_completed_where_it_must_be_signed_and_cannot_be(
    store: ArtifactStore, medium: Medium, weights: Path, signing: Signing
) -> None:
    cannot_sign = signing.model_copy(update={"private_key": None})
    with pytest.raises(ConfigError, match="no signing key is set here"):
        open_store(medium.config.model_copy(update={"signing": cannot_sign})).publish("checkpoint", weights)
    assert list(store.artifacts()) == []

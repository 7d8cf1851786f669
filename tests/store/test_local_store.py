import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from llm_pipeline.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store import LocalStore, open_store
from llm_pipeline.store.artifact_store import Conflict
from llm_pipeline.store.manifest import COMPLETE_FILE, MANIFEST_FILE
from llm_pipeline.store.provenance import Provenance


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(f"file://{tmp_path / 'store'}")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    directory = tmp_path / "weights"
    (directory / "sub").mkdir(parents=True)
    (directory / "model.bin").write_bytes(os.urandom(3_000_000))
    (directory / "sub" / "config.json").write_text("{}")
    return directory


def stored(store: LocalStore, ref: ArtifactRef) -> Path:
    return store.root / "artifacts" / ref.kind / ref.digest


def test_what_is_published_is_fetched_whole(store: LocalStore, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    fetched = store.fetch(ref)
    assert (fetched / "model.bin").read_bytes() == (weights / "model.bin").read_bytes()
    assert (fetched / "sub" / "config.json").read_text() == "{}"
    assert store.manifest(ref).size == 3_000_002


def test_equal_content_has_one_name_whoever_made_it(store: LocalStore, weights: Path) -> None:
    first = store.publish("checkpoint", weights, Provenance(made_by="one"))
    second = store.publish("checkpoint", weights, Provenance(made_by="two"))
    assert first == second


def test_another_kind_is_another_artifact(store: LocalStore, weights: Path) -> None:
    assert store.publish("checkpoint", weights).digest != store.publish("engine", weights).digest


@pytest.mark.parametrize("position", [0, 1_500_000, 2_999_999])
def test_one_changed_byte_is_found_and_named(store: LocalStore, weights: Path, position: int) -> None:
    ref = store.publish("checkpoint", weights)
    path = stored(store, ref) / "model.bin"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"model\.bin: changed"):
        store.fetch(ref)


@pytest.mark.parametrize("name", ["model.bin", "sub/config.json", MANIFEST_FILE, COMPLETE_FILE])
def test_a_missing_file_is_found(store: LocalStore, weights: Path, name: str) -> None:
    ref = store.publish("checkpoint", weights)
    (stored(store, ref) / name).unlink()
    with pytest.raises(IntegrityError, match="missing"):
        store.fetch(ref)


def test_an_extra_file_is_found(store: LocalStore, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    (stored(store, ref) / "backdoor.py").write_text("")
    with pytest.raises(IntegrityError, match=r"backdoor\.py: not in the manifest"):
        store.fetch(ref)


def test_a_manifest_that_was_edited_is_found(store: LocalStore, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    manifest = stored(store, ref) / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace('"size": 2', '"size": 3'))
    with pytest.raises(IntegrityError, match="changed since the artifact was completed"):
        store.fetch(ref)


def test_a_damaged_artifact_is_replaced_by_the_next_publication(store: LocalStore, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    (stored(store, ref) / "model.bin").write_bytes(b"rubbish")
    assert store.publish("checkpoint", weights) == ref
    assert store.verify(ref) == []
    assert len(list((store.root / "damaged").iterdir())) == 1


def test_an_artifact_inside_an_artifact_keeps_its_own_markers(store: LocalStore, weights: Path) -> None:
    inner = store.fetch(store.publish("checkpoint", weights))
    outer = inner.parents[3] / "outer"
    shutil.copytree(inner, outer / "engine")
    assert store.verify(store.publish("model_repository", outer)) == []


def test_a_symbolic_link_is_refused(store: LocalStore, weights: Path) -> None:
    (weights / "link").symlink_to("/etc/passwd")
    with pytest.raises(IntegrityError, match="regular files only"):
        store.publish("checkpoint", weights)


def test_an_empty_directory_is_refused(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(IntegrityError, match="nothing to publish"):
        store.publish("checkpoint", tmp_path / "empty")


def test_a_full_disk_leaves_nothing_half_published(
    store: LocalStore, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llm_pipeline.store.local._write_durably", full)
    with pytest.raises(Transient, match="free disk space"):
        store.publish("checkpoint", weights)
    assert not list((store.root / "incoming").iterdir())
    assert not (store.root / "artifacts").exists()


def test_a_document_is_written_only_at_the_revision_it_was_read(store: LocalStore) -> None:
    first = store.write_document("pointers/m/cpu.json", {"n": 1}, None)
    second = store.write_document("pointers/m/cpu.json", {"n": 2}, first)
    with pytest.raises(Conflict):
        store.write_document("pointers/m/cpu.json", {"n": 3}, first)
    with pytest.raises(Conflict):
        store.write_document("pointers/m/cpu.json", {"n": 3}, None)
    document = store.read_document("pointers/m/cpu.json")
    assert document is not None
    assert (document.value, document.revision) == ({"n": 2}, second)


def _increment(uri: str, times: int) -> None:
    store = open_store(uri)
    done = 0
    while done < times:
        document = store.read_document("counter.json")
        try:
            count = int(str(document.value["n"])) if document else 0
            store.write_document("counter.json", {"n": count + 1}, document.revision if document else None)
        except Conflict:
            continue
        done += 1


def test_concurrent_writers_never_lose_an_update(store: LocalStore) -> None:
    workers = [multiprocessing.Process(target=_increment, args=(store.uri, 40)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    document = store.read_document("counter.json")
    assert document is not None
    assert document.value == {"n": 160}


@pytest.mark.parametrize("name", ["../escape.json", "/etc/passwd", "a//b.json", "a/../b.json", ".hidden.json", ""])
def test_a_name_cannot_leave_the_store(store: LocalStore, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name for the store"):
        store.write_document(name, {}, None)


def test_a_torn_document_is_an_error_not_an_absence(store: LocalStore) -> None:
    store.write_document("pointers/m/cpu.json", {"n": 1}, None)
    (store.root / "pointers/m/cpu.json").write_text('{"revision": "1", "val')
    with pytest.raises(IntegrityError, match="not a document"):
        store.read_document("pointers/m/cpu.json")


def test_documents_are_listed_without_temporary_files(store: LocalStore) -> None:
    store.write_document("releases/a/release.json", {}, None)
    store.write_document("releases/a/results/download.json", {}, None)
    (store.root / "releases/a/.release.json.tmp").write_text("")
    assert store.list_documents("releases") == ["releases/a/release.json", "releases/a/results/download.json"]

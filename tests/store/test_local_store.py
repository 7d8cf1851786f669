"""What the store on a disk promises beyond the contract of every store (`test_store_contract.py`)."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import IntegrityError, Transient


def test_a_full_disk_leaves_nothing_half_published(
    store: LocalStore, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llm_pipeline.store.file_blobs.copy_file", full)
    with pytest.raises(Transient, match="free disk space"):
        store.publish("checkpoint", weights)
    assert not list((store.root / "incoming").iterdir())
    assert store.leftovers(timedelta(0)) == []


def test_documents_are_listed_without_temporary_files(store: LocalStore) -> None:
    store.write_document("releases/a/release.json", {}, None)
    store.write_document("releases/a/results/download.json", {}, None)
    (store.root / "releases/a/.release.json.tmp").write_text("")
    assert store.list_documents("releases") == ["releases/a/release.json", "releases/a/results/download.json"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a named pipe", "a directory"])
def test_what_is_no_file_in_place_of_a_document_is_an_error_and_holds_nobody(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    store = LocalStore(f"file://{tmp_path}")
    (tmp_path / "pointers/org").mkdir(parents=True)
    make(tmp_path / "pointers/org/model.json")
    with pytest.raises(IntegrityError, match=r"not a regular file.*model\.json|model\.json.*not a regular file"):
        store.read_document("pointers/org/model.json")
    with pytest.raises(IntegrityError, match="not a regular file"):
        store.read_file("pointers/org/model.json")

"""Retention of a store that cannot be read, or not wholly: nothing goes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from store_history import TARGET, History
from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline.base.errors import IntegrityError, PipelineError, Transient
from llm_pipeline.retention import collect_garbage
from llm_pipeline.store.place_state import place_name

RULES = {"keep_releases": 1, "keep_days": 1.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no power is cut here


@pytest.fixture(scope="module")
def history() -> Iterator[History]:
    """Two releases in production one after the other, a newer one, and one that is to go."""
    with directory_for_everyone() as root:
        history = History(root, **RULES)
        history.release(0)
        for number in (1, 2):
            history.settle(history.release(number))
        history.claim(history.release(3), silent_hours=72)
        (root / "work" / "jobs" / "tiny-00000009-00000064" / "download" / "1").mkdir(parents=True)
        yield history


def collect(history: History) -> None:
    collect_garbage(history.deployment, delete=True, now=datetime.now(UTC).replace(year=2100))


DIRECTORIES = [
    "store/places",
    "store/releases",
    "store/releases/tiny-00000002-00000064",
    "store/releases/tiny-00000002-00000064/results",
    "store/claims",
    "store/stages",
    "store/artifacts",
    "store/artifacts/checkpoint",
    "store/incoming",
    "work/jobs",
    "work/jobs/tiny-00000009-00000064/download",
]


@pytest.mark.parametrize("bits", [0o000, 0o300], ids=["closed", "not listed"])
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_where_a_directory_cannot_be_read_nothing_goes_and_it_is_named(history: History, directory: str, bits: int):
    before = history.names()
    with without_root(history.root), mode(history.root / directory, bits), pytest.raises(PipelineError) as refused:
        collect(history)
    assert directory in str(refused.value)
    assert history.names() == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("directory", ["store/places", "store/releases", "store/artifacts/checkpoint", "work/jobs"])
def test_where_the_disk_does_not_answer_nothing_goes(
    history: History, directory: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    scandir, failing = os.scandir, history.root / directory

    def faulty(path):
        if Path(path) == failing:
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    before = history.names()
    monkeypatch.setattr(os, "scandir", faulty)
    with pytest.raises(Transient, match=os.strerror(number)):
        collect(history)
    monkeypatch.setattr(os, "scandir", scandir)
    assert history.names() == before


@pytest.mark.parametrize("name", ["store/places", "store/releases", "store/artifacts", "store/artifacts/checkpoint"])
def test_a_link_to_a_file_system_that_is_not_mounted_is_no_empty_directory(history: History, name: str):
    place = history.root / name
    aside = place.rename(place.with_name("aside"))
    place.symlink_to("/not/mounted")
    try:
        with pytest.raises(Transient, match="cannot list"):
            collect(history)
    finally:
        place.unlink()
        aside.rename(place)


@pytest.mark.parametrize(
    "document",
    [
        place_name(TARGET),
        "releases/tiny-00000002-00000064/release.json",
        "releases/tiny-00000002-00000064/results/package.cpu.json",
        "claims/demo/tiny.json",
        "a stage",
    ],
)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"revision": "1", "val',
        b'{"revision": "1", "value": []}',
        b'{"revision": "1", "value": {"form": "unknown"}}',
        None,
    ],
)
def test_where_a_root_is_damaged_nothing_goes_and_the_document_is_named(
    history: History, document: str, content: bytes | None
):
    name = history.store.list_documents("stages")[0] if document == "a stage" else document
    file = history.root / "store" / name
    whole, before = file.read_bytes(), history.names()
    try:
        if content is None:
            with (
                without_root(history.root),
                mode(file, 0o000),
                pytest.raises(Transient, match="Permission denied") as e,
            ):
                collect(history)
        else:
            file.write_bytes(content)
            with pytest.raises(IntegrityError) as e:
                collect(history)
    finally:
        file.write_bytes(whole)
    assert name in str(e.value)
    assert e.value.hint
    assert history.names() == before

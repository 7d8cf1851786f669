"""Listings leave nothing out: what cannot be read is an error, what is gone is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from unprivileged import directory_for_everyone, mode, without_root

from llm_pipeline.base.directory_listing import list_directories, list_directory, refuse_unreadable, walk_files
from llm_pipeline.base.errors import PipelineError, Transient
from llm_pipeline.hub.directory_source import DirectorySource

LISTINGS: dict[str, Callable[[Path], object]] = {
    "list_directory": lambda root: list_directory(root / "inner"),
    "list_directories": lambda root: list_directories(root / "inner"),
    "walk_files": lambda root: list(walk_files(root)),
    "os.walk": lambda root: list(os.walk(root, onerror=refuse_unreadable)),
    "a model in a directory": lambda root: DirectorySource(root).resolve("o/m", None),
}


@pytest.fixture
def tree() -> Iterator[Path]:
    with directory_for_everyone() as root:
        (root / "inner" / "deeper").mkdir(parents=True)
        (root / "inner" / "file").write_text("")
        (root / "inner" / "deeper" / "other").write_text("")
        yield root


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)
def test_what_cannot_be_read_is_named(tree: Path, listing: Callable[[Path], object]):
    with without_root(tree), mode(tree / "inner", 0o000), pytest.raises(PipelineError, match="Permission denied") as e:
        listing(tree)
    assert "inner" in e.value.where


def test_what_is_there_is_listed_in_order(tree: Path):
    inner = tree / "inner"
    assert list_directory(inner) == [inner / "deeper", inner / "file"]
    assert list_directories(inner) == [inner / "deeper"]
    assert list(walk_files(tree)) == [inner / "deeper" / "other", inner / "file"]


def test_a_file_in_a_directory_s_place_is_told_apart_from_a_missing_right(tree: Path):
    with pytest.raises(Transient, match="Not a directory") as caught:
        list_directory(tree / "inner" / "file")
    assert caught.value.hint == "a file lies where a directory should: move it away, or name another directory"


def test_what_is_not_there_is_empty(tree: Path):
    gone = tree / "gone"
    assert list_directory(gone) == list_directories(gone) == list(walk_files(gone)) == []


def test_links_to_directories_are_listed_and_not_walked(tree: Path):
    (tree / "link").symlink_to(tree / "inner")
    assert list_directories(tree) == [tree / "inner", tree / "link"]
    assert tree / "link" in list(walk_files(tree))


@pytest.mark.parametrize("listing", [list_directory, list_directories, lambda path: list(walk_files(path))])
def test_a_link_that_leads_nowhere_is_no_empty_directory(tree: Path, listing: Callable[[Path], object]):
    (tree / "link").symlink_to("/not/mounted")
    with pytest.raises(Transient, match="cannot list"):
        listing(tree / "link")
    with pytest.raises(Transient, match="cannot list"):
        list_directories(tree)

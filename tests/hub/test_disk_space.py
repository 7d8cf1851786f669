from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from llm_pipeline.hub.download import DirectoryNeed, DiskTooSmall, require_space

FREE = 1_000_000_000
MOST = FREE


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def _one_gigabyte_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FREE, 0, FREE))


def test_what_fits_on_a_disk_passes(tmp_path: Path) -> None:
    require_space(DirectoryNeed("work_root", tmp_path / "not" / "there", MOST))


def test_two_copies_on_one_disk_need_twice_the_space(tmp_path: Path) -> None:
    halves = (
        DirectoryNeed("work_root", tmp_path / "work", MOST // 2),
        DirectoryNeed("store", tmp_path / "store", MOST // 2),
    )
    require_space(*halves)
    with pytest.raises(DiskTooSmall, match=r"1 GB are still to be fetched and only 1 GB") as caught:
        require_space(*halves, DirectoryNeed("store", tmp_path / "store", 2_000_000))
    assert "work_root and store" in caught.value.where


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")  # noqa: S108
def test_each_disk_is_judged_by_itself(tmp_path: Path) -> None:
    other = Path("/dev/shm")  # noqa: S108
    if os.stat(other).st_dev == os.stat(tmp_path).st_dev:  # noqa: PTH116
        pytest.skip("one file system")
    require_space(DirectoryNeed("work_root", tmp_path, MOST), DirectoryNeed("store", other, MOST))
    with pytest.raises(DiskTooSmall, match="store"):
        require_space(DirectoryNeed("work_root", tmp_path, MOST), DirectoryNeed("store", other, MOST + 1))


def test_nothing_to_come_needs_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FREE, FREE, 0))
    require_space(DirectoryNeed("work_root", tmp_path, 0))

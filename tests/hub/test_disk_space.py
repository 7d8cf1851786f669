from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from llm_pipeline.hub.download import DiskTooSmall, require_space

FREE = 1_000_000_000


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture(autouse=True)
def _one_gigabyte_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FREE, 0, FREE))


def test_what_fits_on_a_disk_passes(tmp_path: Path) -> None:
    require_space(tmp_path / "not" / "there", FREE)


def test_what_does_not_fit_is_refused_with_what_is_needed_and_free(tmp_path: Path) -> None:
    with pytest.raises(DiskTooSmall, match=r"1 GB are still to be fetched and only 1 GB") as caught:
        require_space(tmp_path / "work", FREE + 2_000_000)
    assert f"work_root ({tmp_path}" in caught.value.where


def test_nothing_to_come_needs_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FREE, FREE, 0))
    require_space(tmp_path, 0)

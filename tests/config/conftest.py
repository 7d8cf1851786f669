from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"

Edit = Callable[[str, str, str], int]


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """A private copy of the committed configs."""
    return Path(shutil.copytree(CONFIGS, tmp_path / "configs")).resolve()


@pytest.fixture
def edit(configs: Path) -> Edit:
    """Replace one piece of a config file; returns the line that it starts on."""

    def replace(name: str, old: str, new: str) -> int:
        path = configs / name
        text = path.read_text()
        assert text.count(old) >= 1, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
        return text[: text.index(old)].count("\n") + 1

    return replace

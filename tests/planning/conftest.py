from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"

Edit = Callable[[str, str, str], None]


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """A private copy of the committed configs, whose local deployment has interpreters and free ports."""
    copy = Path(shutil.copytree(CONFIGS, tmp_path / "configs")).resolve()
    path = copy / "deployments" / "local.yaml"
    text = path.read_text().replace("../../.envs/control/bin/python", sys.executable)
    path.write_text(text.replace("../../.envs/model/bin/python", sys.executable))
    return copy


@pytest.fixture
def edit(configs: Path) -> Edit:
    """Replace one piece of a config file."""

    def replace(name: str, old: str, new: str) -> None:
        text = (configs / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (configs / name).write_text(text.replace(old, new, 1))

    return replace

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """A private copy of the committed configs."""
    return Path(shutil.copytree(CONFIGS, tmp_path / "configs")).resolve()

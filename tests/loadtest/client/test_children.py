"""What the parent says of a client process that cannot run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.measure import LoadClient


def test_a_client_without_its_packages_is_bad_input_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError('No module named uvloop', name='uvloop')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with (
        pytest.raises(ConfigError, match="cannot run here") as refused,
        LoadClient(Endpoint(url="http://127.0.0.1:1"), processes=1),
    ):
        pass
    assert "pip install 'llm-pipeline[control]'" in refused.value.hint


def test_processes_that_have_started_end_with_the_one_that_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds no interpreter that it can use."""
    second = tmp_path / "python"
    second.write_text(f'#!/bin/sh\nmkdir {tmp_path}/first 2>/dev/null || exit 3\nexec {sys.executable} "$@"\n')
    second.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(second))
    before = set(psutil.Process().children())
    with pytest.raises(Transient, match="exit code 3"), LoadClient(Endpoint(url="http://127.0.0.1:1"), processes=2):
        pass
    assert set(psutil.Process().children()) <= before

"""What the parent says of a client process that cannot run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.loadtest.client.messages import Target
from llm_pipeline.loadtest.measure import Children


def test_a_client_without_its_packages_is_bad_input_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError('No module named uvloop', name='uvloop')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    target = Target(host="127.0.0.1", port=1, path="/")
    with Children(target) as children, pytest.raises(ConfigError, match="cannot run here") as refused:
        children.start(1)
    assert "pip install 'llm-pipeline[control]'" in refused.value.hint

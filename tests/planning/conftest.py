from __future__ import annotations

import sys
from pathlib import Path

import pytest

NOBODY = "127.0.0.1:9"
"""Where no hub answers, whatever runs on this host."""


@pytest.fixture(autouse=True)
def _no_credentials_for_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has some does not have them used: the example's bucket is somebody else's."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public hub is not asked: releases are judged by the sizes that they state."""
    monkeypatch.setenv("HF_ENDPOINT", f"http://{NOBODY}")


@pytest.fixture
def configs(configs: Path) -> Path:
    """They have interpreters, and not the hub of a demo that runs."""
    path = configs / "deployments" / "local.yaml"
    text = path.read_text().replace("../../.envs/control/bin/python", sys.executable)
    text = text.replace("../../.envs/model/bin/python", sys.executable)
    path.write_text(text.replace("127.0.0.1:18180", NOBODY))
    return configs

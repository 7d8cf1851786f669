"""A real local hub for every test, and small models to publish on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hub import CONFIG, TOKEN_VARIABLE, LocalHub, safetensors_bytes, serve_local_hub

from llm_pipeline.hub.access import Hub, connect
from llm_pipeline.hub.hub_source import HubSource

__all__ = ["CONFIG", "TOKEN_VARIABLE", "LocalHub", "safetensors_bytes"]


def content(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def expected(local_hub: LocalHub) -> dict[str, bytes]:
    """What is downloaded of the model that was published last."""
    return {name: data for name, data in local_hub.contents.items() if name != "README.md"}


@pytest.fixture
def local_hub(tmp_path: Path) -> Iterator[LocalHub]:
    """A hub on a free port."""
    with serve_local_hub(tmp_path) as hub:
        yield hub


@pytest.fixture
def source(hub: Hub) -> HubSource:
    """The local hub as a source."""
    return HubSource(hub)


@pytest.fixture
def hub(local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An anonymous connection to the local hub."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return connect(local_hub.endpoint, TOKEN_VARIABLE)


TOKEN = "hf_writerofthistestonly"


@pytest.fixture
def writer(local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A connection with a token that may write what it creates."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    return connect(local_hub.endpoint, TOKEN_VARIABLE)

"""A release that cannot work fails in its first stage, with the plan's error, before anything is asked or fetched."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_pipeline.release.contract import StageFailure
from llm_pipeline.release.execute import execute
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import resolve_request
from llm_pipeline.store import open_store


@pytest.fixture
def hub(edit) -> Iterator[socket.socket]:
    """A hub that answers nobody, so that whoever asks it can be seen."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        edit("deployments/local.yaml", "127.0.0.1:9", f"127.0.0.1:{listener.getsockname()[1]}")
        yield listener


def refusal(path: Path, revision: str | None = None) -> StageFailure:
    outcome = execute(resolve_request(load_release(path), revision))
    assert isinstance(outcome, StageFailure), outcome
    return outcome


def nobody_asked(hub: socket.socket) -> bool:
    try:
        hub.accept()
    except BlockingIOError:
        return True
    return False


def test_an_impossible_recipe_is_told_at_once(configs: Path, edit, hub: socket.socket):
    edit("releases/demo.yaml", "recipes: [int4_naive, int4_awq, fp8]", "recipes: [nvfp4]")
    error = refusal(configs / "releases" / "demo.yaml").error
    assert (error.type, error.family) == ("Unsupported", "terminal")
    assert "recipe nvfp4 on target cpu: the CPU engine cannot serve nvfp4" in error.message
    assert nobody_asked(hub)
    store = open_store(f"file://{configs.parent}/.pipeline/store")
    assert list(store.artifacts()) == []
    assert store.list_documents("releases") == ["releases/demo/failures/resolve.json"]


def test_a_revision_of_the_form_that_cannot_be_one_is_told_at_once(configs: Path, hub: socket.socket):
    error = refusal(configs / "releases" / "demo.yaml", "main; rm").error
    assert error.type == "ConfigError"
    assert "revision" in error.message
    assert nobody_asked(hub)

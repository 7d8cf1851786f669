"""What serving pods do before their server starts, through the commands that the manifests call."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from pretended_engine import engine_facts, linked_repository

from llm_pipeline.artifacts.engine_description import EngineDescription, GpuFacts, HostFacts
from llm_pipeline.base.errors import ConfigError, ExitCode, Transient
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.cli import main
from llm_pipeline.config.store import store_settings
from llm_pipeline.config.target import Target
from llm_pipeline.serving.repository_links import await_listeners
from llm_pipeline.store import ArtifactStore


@pytest.fixture
def repository(store: ArtifactStore, tmp_path: Path) -> ArtifactRef:
    return linked_repository(store, tmp_path)


def lay_out(store: str, repository: ArtifactRef, view: Path) -> int:
    return main(["pod", "lay-out", f"{repository.kind}/{repository.digest}", "--store", store, "--view", str(view)])


def test_a_view_is_links_to_verified_artifacts_made_anew_when_the_pod_starts_again(store, repository, tmp_path):
    for written in (store.uri, store_settings(uri=store.uri).model_dump_json(exclude_none=True)):
        assert lay_out(written, repository, tmp_path / "view") == ExitCode.GO
    assert (tmp_path / "view/llm/1/model.py").read_text() == "code"
    assert (tmp_path / "view/llm/1/checkpoint/model.safetensors").read_text() == "weights"
    assert (tmp_path / "view/llm/1/checkpoint").is_symlink()


def test_damaged_weights_are_never_laid_out(store, repository, tmp_path, capsys):
    linked = ArtifactRef.model_validate(
        json.loads((store.fetch(repository) / "links.json").read_text())["llm/1/checkpoint"]
    )
    weights = store.fetch(linked) / "model.safetensors"
    weights.parent.chmod(0o700)
    weights.chmod(0o600)
    weights.write_text("WEIGHTS")
    assert lay_out(store.uri, repository, tmp_path / "view") == ExitCode.INFRASTRUCTURE
    assert "is not whole" in capsys.readouterr().err
    assert not (tmp_path / "view").exists()


def test_a_store_that_is_none_is_bad_input(repository, tmp_path, capsys):
    assert lay_out("{}", repository, tmp_path / "view") == ExitCode.BAD_INPUT
    assert "not a store" in capsys.readouterr().err


def test_an_engine_of_another_host_is_not_laid_out(store, repository, tmp_path, monkeypatch, capsys):
    doubles = Path(__file__).parents[1] / "doubles"
    monkeypatch.setenv("PATH", f"{doubles}:{os.environ['PATH']}")
    gpu = {"name": "NVIDIA L4", "compute_cap": "8.9", "memory.total": 23034, "driver_version": "590.44.01"}
    monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", json.dumps([gpu]))
    built = tmp_path / "built"
    (built / "llm/1/engine").mkdir(parents=True)
    (built / "llm/1/engine/engine.json").write_text(engine_of_an_h100())
    assert lay_out(store.uri, store.publish("model_repository", built), tmp_path / "view") == ExitCode.BAD_INPUT
    assert "NVIDIA L4" in capsys.readouterr().err


def engine_of_an_h100() -> str:
    target = Target(name="h100", accelerator="H100-SXM5-80GB", engine="tensorrt_llm_llmapi")
    facts = engine_facts()
    gpu = GpuFacts(name="NVIDIA H100 80GB HBM3", sm="sm90", memory_bytes=85_520_809_984)
    host = HostFacts(gpus=(gpu,), driver="590.44.01")
    return EngineDescription(facts=facts, target=target, host=host).model_dump_json()


def test_pods_are_waited_for_and_one_that_does_not_come_may_come_later():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["pod", "await", f"127.0.0.1:{port}", "--minutes", "0.1"]) == ExitCode.GO
    with pytest.raises(Transient, match="no process listens after 0 s"):
        await_listeners([f"127.0.0.1:{port}"], seconds=0)


def test_an_address_without_a_port_is_a_mistake():
    with pytest.raises(ConfigError, match="not host:port"):
        await_listeners(["leader"], seconds=0)

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pretended_engine import engine_facts

from llm_pipeline.artifacts.engine_description import EngineDescription, GpuFacts, HostFacts
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.serving.repository_links import fetch_links, read_links, refuse_other_host, write_links
from llm_pipeline.serving.triton_runtime import link_repository

DOUBLES = Path(__file__).parents[1] / "doubles"


@pytest.fixture
def checkpoint(store, tmp_path) -> ArtifactRef:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/model.safetensors").write_bytes(b"weights")
    return store.publish("checkpoint", tmp_path / "checkpoint")


@pytest.fixture
def linked(checkpoint, tmp_path) -> Path:
    repository = tmp_path / "linked"
    (repository / "llm/1").mkdir(parents=True)
    (repository / "llm/1/model.py").write_text("")
    write_links(repository, {"llm/1/checkpoint": checkpoint})
    return repository


def test_what_a_repository_links_to_is_laid_into_the_servers_view(linked, store, tmp_path):
    link_repository(linked, tmp_path / "view", fetch_links(linked, store))
    assert (tmp_path / "view/llm/1/checkpoint/model.safetensors").read_bytes() == b"weights"
    assert (tmp_path / "view/llm/1/model.py").is_symlink()
    assert not (linked / "llm/1/checkpoint").exists()


def test_what_would_read_other_files_is_not_served(linked, tmp_path):
    checkpoint, view = tmp_path / "poisoned", tmp_path / "view"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text('{"transformers_weights": "/models/good.safetensors"}')
    with pytest.raises(IntegrityError, match=r"'transformers_weights' is '/models/good\.safetensors'"):
        link_repository(linked, view, {"llm/1/checkpoint": checkpoint})
    assert not view.exists()
    (linked / "llm/1/tokenizer_config.json").write_text('{"tokenizer_file": "/models/tokenizer.json"}')
    with pytest.raises(IntegrityError, match=r"'tokenizer_file' is '/models/tokenizer\.json'"):
        link_repository(linked, view)


def test_a_repository_without_links_has_none(tmp_path):
    write_links(tmp_path, {})
    assert read_links(tmp_path) == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "llm/../../x", "", "."])
def test_a_link_never_leads_out_of_the_repository_and_what_is_no_list_of_links_is_refused(name, tmp_path):
    for linked, said in (({"kind": "checkpoint", "digest": "c" * 64}, "leads out"), ("x", "not a list of links")):
        (tmp_path / "links.json").write_text(json.dumps({name: linked}))
        with pytest.raises(IntegrityError, match=said):
            read_links(tmp_path)


def test_a_repository_is_refused_on_another_host_and_one_that_does_not_say_goes_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{DOUBLES}:{os.environ['PATH']}")
    gpu = {"name": "NVIDIA L4", "compute_cap": "8.9", "memory.total": 23034, "driver_version": "590.44.01"}
    monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", json.dumps([gpu]))
    refuse_other_host(tmp_path)
    engine = tmp_path / "llm/1/engine"
    engine.mkdir(parents=True)
    facts = engine_facts(quantization="FP8", kv_cache="fp8", context_length=512)
    host = HostFacts(gpus=(GpuFacts(name="NVIDIA H200", sm="sm90", memory_bytes=2**37),), driver="590.44.01")
    target = Target(name="h200", accelerator="h200", engine="tensorrt_llm_engine")
    EngineDescription(facts=facts, target=target, host=host).write(engine)
    with pytest.raises(Unsupported, match=r"GPU 0 is NVIDIA L4 \(sm89\), it was built on NVIDIA H200 \(sm90\)"):
        refuse_other_host(tmp_path)

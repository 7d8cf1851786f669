"""The download stage judges the model once more, by the bytes that came."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from pathlib import Path

from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.release import ModelSource
from llm_pipeline.config.store import store_settings
from llm_pipeline.hub.directory_source import DirectorySource
from llm_pipeline.hub.model_look import read_documents
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import read_facts
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.download import download_config
from llm_pipeline.store import open_store

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_tokenizer import TOKENIZER

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 4, "max_position_embeddings": 64,
}  # fmt: skip


def published(root: Path) -> tuple[ModelSource, ModelFacts]:
    """A model in a directory, and what a plan sees of it."""
    root.mkdir()
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "F16", "shape": [4, 8], "data_offsets": [0, 64]}})
    (root / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(64))
    (root / "config.json").write_text(json.dumps(CONFIG))
    (root / "tokenizer.json").write_bytes(TOKENIZER)
    facts = read_facts(read_documents(DirectorySource(root).look("demo/tiny", "main")))
    return ModelSource(id="demo/tiny", source=f"file://{root}"), facts


def downloaded(tmp_path: Path, source: ModelSource, facts: ModelFacts) -> StageResult | StageFailure:
    model = DirectorySource(tmp_path / "model").resolve("demo/tiny", "main")
    config = download_config(model, source, HubAccess(), facts)
    request = StageRequest(
        release_id="demo",
        stage="download",
        config=config.model_dump(mode="json"),
        store=store_settings(uri=f"file://{tmp_path}/store"),
        work_root=str(tmp_path / "work"),
    )
    return execute(request)


def test_another_model_than_the_plan_judged_is_refused(tmp_path: Path):
    source, facts = published(tmp_path / "model")
    larger = facts.model_copy(update={"context_length": 128})
    outcome = downloaded(tmp_path, source, larger)
    assert isinstance(outcome, StageFailure)
    assert outcome.error.type == "IntegrityError"
    assert "context_length differ; context_length was 128, is 64" in outcome.error.message


def test_what_was_judged_is_not_in_the_key_of_the_download(tmp_path: Path):
    source, facts = published(tmp_path / "model")
    assert isinstance(downloaded(tmp_path, source, facts), StageResult)
    again = downloaded(tmp_path, source, facts.model_copy(update={"context_length": 128}))
    assert isinstance(again, StageResult)
    assert again.reused


def test_a_download_killed_just_before_it_is_in_the_store_is_not_made_again(tmp_path: Path):
    source, facts = published(tmp_path / "model")
    if (child := os.fork()) == 0:
        rename = Path.rename

        def killed(temporary: Path, place: Path) -> Path:
            if place.name == "_MANIFEST.json":  # all files have got their places in the store
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(temporary, place)

        Path.rename = killed
        downloaded(tmp_path, source, facts)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not list((tmp_path / "store").rglob("_COMPLETE.json"))
    outcome = downloaded(tmp_path, source, facts)
    assert isinstance(outcome, StageResult), outcome
    assert not outcome.reused
    assert outcome.metrics["fetched_bytes"] == 0
    assert open_store(f"file://{tmp_path}/store").verify(outcome.artifacts["checkpoint"]) == []

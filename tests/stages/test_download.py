"""The download stage goes on where a killed attempt stopped."""

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
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.download import download_config
from llm_pipeline.store import open_store

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_tokenizer import TOKENIZER


def downloaded(tmp_path: Path) -> StageResult | StageFailure:
    root = tmp_path / "model"
    source = ModelSource(id="demo/tiny", source=f"file://{root}")
    config = download_config(DirectorySource(root).resolve("demo/tiny", "main"), source, HubAccess())
    request = StageRequest(
        release_id="demo",
        stage="download",
        config=config.model_dump(mode="json"),
        store=store_settings(uri=f"file://{tmp_path}/store"),
        work_root=str(tmp_path / "work"),
    )
    return execute(request)


def test_a_download_killed_just_before_it_is_in_the_store_is_not_made_again(tmp_path: Path):
    root = tmp_path / "model"
    root.mkdir()
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "F16", "shape": [4, 8], "data_offsets": [0, 64]}})
    (root / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(64))
    (root / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (root / "tokenizer.json").write_bytes(TOKENIZER)
    if (child := os.fork()) == 0:
        rename = Path.rename

        def killed(temporary: Path, place: Path) -> Path:
            if place.name == "_MANIFEST.json":  # all files have got their places in the store
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(temporary, place)

        Path.rename = killed
        downloaded(tmp_path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not list((tmp_path / "store").rglob("_COMPLETE.json"))
    outcome = downloaded(tmp_path)
    assert isinstance(outcome, StageResult), outcome
    assert not outcome.reused
    assert outcome.metrics["fetched_bytes"] == 0
    assert open_store(f"file://{tmp_path}/store").verify(outcome.artifacts["checkpoint"]) == []

"""The check of `config.json` against configurations that the reference library writes."""

from __future__ import annotations

from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

from llm_pipeline.hub.checkpoint import check_model_config

MODELS = [
    "deepseek_v3", "gemma3", "glm4_moe_lite", "gpt2", "gpt_oss", "llama", "mixtral", "nemotron", "opt", "phi3", "qwen3",
    "qwen3_moe",
]  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_what_the_reference_library_writes_is_sound(tmp_path: Path, kind: str) -> None:
    config = transformers.CONFIG_MAPPING[kind]()
    config.architectures = ["ForCausalLM"]
    config.save_pretrained(tmp_path)
    check_model_config(tmp_path / "config.json", {})

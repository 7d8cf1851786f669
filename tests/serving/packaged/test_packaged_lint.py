"""What this package writes has no finding of the linter that is for any repository."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.serving.lint import lint_repository_directory
from llm_pipeline.serving.model_repository import write_repository

GOLDEN = [GoldenPrompt(prompt="2+2=", completion=" 4", maximum_tokens=4)]
FACTS = {"quantization": "FP8", "note": "a fact may hold ${anything}"}
ENGINE = ArtifactRef(kind="engine", digest="e" * 64)
ARGUMENTS = {"backend": "pytorch", "tensor_parallel_size": 2, "kv_cache_config": {"free_gpu_memory_fraction": 0.9}}


@pytest.mark.parametrize("devices", [[], [[0, 1], [2, 3]]])
def test_the_repository_of_the_llm_api_has_no_finding(gpu_engine, tmp_path, devices):
    pytest.importorskip("jsonschema")
    engine, target = gpu_engine("tensorrt_llm_llmapi", serving={"gpu_device_ids": devices})
    (engine / "llm_args.yaml").write_text(yaml.safe_dump(ARGUMENTS))
    write_repository(engine, GOLDEN, FACTS, target, tmp_path / "repository", engine_ref=ENGINE)
    assert lint_repository_directory(tmp_path / "repository") == ()


@pytest.mark.parametrize("streaming", [True, False])
def test_the_repository_of_an_engine_has_no_finding_before_and_after_the_engine_is_laid_in(
    gpu_engine, byte_tokenizer, tmp_path, streaming
):
    engine, target = gpu_engine("tensorrt_llm_engine", serving={"streaming": streaming})
    build = {"max_batch_size": 4, "max_beam_width": 1}
    config = {"pretrained_config": {"logits_dtype": "float16", "mapping": {"world_size": 1}}, "build_config": build}
    (engine / "config.json").write_text(json.dumps(config))
    (engine / "rank0.engine").write_text("plan")
    shutil.copytree(byte_tokenizer, engine / "tokenizer")
    repository = tmp_path / "repository"
    write_repository(engine, GOLDEN, FACTS, target, repository, engine_ref=ENGINE)
    assert lint_repository_directory(repository) == ()

    shutil.copytree(engine, repository / "tensorrt_llm/1/engine")
    assert lint_repository_directory(repository) == ()

    (repository / "tensorrt_llm/1/engine/rank0.engine").unlink()
    (finding,) = lint_repository_directory(repository)
    assert (finding.place, finding.rule) == ("tensorrt_llm/1/engine", "engine_directory")


def test_the_repository_of_the_cpu_engine_has_no_finding(pretended_engine, tmp_path):
    from llm_pipeline.artifacts.engine_description import EngineDescription

    target = EngineDescription.read(pretended_engine).target
    write_repository(pretended_engine, GOLDEN, FACTS, target, tmp_path / "repository", engine_ref=ENGINE)
    assert lint_repository_directory(tmp_path / "repository") == ()

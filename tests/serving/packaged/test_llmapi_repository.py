"""The LLM API's repository. After a change that is meant: `UPDATE_GOLDEN=1 pytest` on this file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tritonclient")

from llm_pipeline.artifacts.endpoint_description import read_serve_command
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.repository_links import read_links

GOLDEN_FILES = Path(__file__).parent / "golden" / "llmapi"
ARGUMENTS = {"backend": "pytorch", "tensor_parallel_size": 2, "kv_cache_config": {"free_gpu_memory_fraction": 0.9}}
ENGINE = ArtifactRef(kind="engine", digest="e" * 64)


@pytest.fixture
def write(gpu_engine, tmp_path):
    def write(arguments="given", **options):
        engine, target = gpu_engine("tensorrt_llm_llmapi", **options)
        if arguments == "given":
            (engine / "llm_args.yaml").write_text(yaml.safe_dump(ARGUMENTS, sort_keys=False))
        golden = [GoldenPrompt(prompt="2+2=", completion=" 4", maximum_tokens=4)]
        write_repository(engine, golden, {"quantization": "FP8"}, target, tmp_path / "repository", engine_ref=ENGINE)
        return tmp_path / "repository"

    return write


def test_the_files_are_the_golden_ones(write):
    repository = write()
    for name in ("llm/config.pbtxt", "llm/1/model.yaml", "links.json"):
        if "UPDATE_GOLDEN" in os.environ:
            (GOLDEN_FILES / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / name, GOLDEN_FILES / name)
        assert (repository / name).read_text() == (GOLDEN_FILES / name).read_text(), name


def test_the_checkpoint_is_linked_and_not_copied(write):
    repository = write()
    assert read_links(repository) == {"llm/1/checkpoint": ArtifactRef(kind="checkpoint", digest="c" * 64)}
    files = {str(path.relative_to(repository / "llm/1")) for path in (repository / "llm/1").rglob("*")}
    code = {"llm_model_base.py", "model.py", "served_model.py"}
    assert files == {"endpoint.json", "engine", "engine/engine.json", "model.yaml", *code}


def test_its_own_server_has_the_arguments_of_the_build_and_counts(write):
    """Never run here: the options are those of TensorRT-LLM's `commands/serve.py`."""
    repository = write(server="trtllm")
    command = read_serve_command(repository)
    file = "llm/1/serve_options.yaml"
    assert command.of(Path("/env/bin"), model="llm_pipeline:d", port=8000) == [
        "/env/bin/trtllm-serve", "llm_pipeline:d", "--host", "127.0.0.1", "--port", "8000",
        "--extra_llm_api_options", file,
    ]  # fmt: skip
    options = yaml.safe_load((repository / file).read_text())
    assert options == {**ARGUMENTS, "return_perf_metrics": True, "enable_iter_perf_stats": True}


def test_an_engine_without_arguments_is_refused(write):
    with pytest.raises(IntegrityError, match="no arguments for LLM"):
        write(arguments=None)

"""The engine builder end to end with doubles of trtllm-build and nvidia-smi: no TensorRT-LLM is run here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from judging import gpu_target
from trtllm_checkpoint import write_trtllm_checkpoint

from llm_pipeline.adapters.tensorrt_llm import engine_builder as tensorrt_llm_engine
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.engines.tool_process import BuildFailed
from llm_pipeline.serving.model_repository import write_repository

DOUBLES = Path(__file__).parents[1] / "doubles"
H100 = {"name": "NVIDIA H100 80GB HBM3", "compute_cap": "9.0", "memory.total": 81559, "driver_version": "590.44.01"}
H200 = {**H100, "name": "NVIDIA H200", "memory.total": 143771}


@pytest.fixture(autouse=True)
def gpu_host(monkeypatch, tmp_path):
    """A host with two H100 and trtllm-build 1.2.1; call it to describe another."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("nvidia-smi", "trtllm-build"):
        (programs / name).symlink_to(DOUBLES / name)
    (programs / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "TRTLLM_DOUBLE_FAILURE", "TRTLLM_DOUBLE_VERSION"):
        monkeypatch.delenv(name, raising=False)

    def describe(*gpus):
        monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", json.dumps(gpus))
        return programs

    describe(H100, H100)
    return describe


@pytest.fixture
def fails(monkeypatch):
    return lambda how: monkeypatch.setenv("TRTLLM_DOUBLE_FAILURE", how)


def target(ranks=1, **changes):
    split = {"accelerator_count": ranks, "parallelism": {"tensor": ranks}}
    limits = {"maximum_sequences": 16, "maximum_tokens_per_request": 4096, "maximum_batched_tokens": 8192}
    return gpu_target(engine="tensorrt_llm_engine", limits=limits, **split, **changes)


@pytest.fixture
def inputs(tmp_path):
    def make(ranks=1, *, given=None, **changes):
        source = tmp_path / "checkpoint"
        source.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
            (source / name).write_text("{}")
        made = given or write_trtllm_checkpoint(tmp_path / f"ranks{len(list(tmp_path.iterdir()))}", tensor=ranks)
        return BuildInputs(source, target(ranks, **changes), tensorrt_llm_checkpoint=made)

    return make


def build(inputs, tmp_path):
    destination = tmp_path / "work" / "engine"
    destination.parent.mkdir(exist_ok=True)
    facts = engine_builder("tensorrt_llm_engine").build(inputs, destination)
    return destination, facts


def left_behind(tmp_path):
    return sorted(path.name for path in (tmp_path / "work").iterdir())


def test_an_engine_has_all_ranks_its_tokenizer_and_a_description_of_its_host(inputs, tmp_path):
    engine, facts = build(inputs(2), tmp_path)
    assert {path.name for path in engine.iterdir()} == {
        "config.json", "engine.json", "rank0.engine", "rank1.engine", "tokenizer",
    }  # fmt: skip
    assert {path.name for path in (engine / "tokenizer").iterdir()} == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    description = EngineDescription.read(engine)
    assert description.facts == facts
    assert [gpu.name for gpu in description.host.gpus] == [H100["name"]] * 2
    assert facts.versions == {"tensorrt_llm": "1.2.1"}
    assert (facts.quantization, facts.kv_cache, facts.context_length) == ("FP8", "fp8", 4096)
    assert facts.details == {"ranks": 2, "workers": 1}
    assert left_behind(tmp_path) == ["engine"]


def test_a_model_repository_that_links_to_the_engine_is_written_from_it(inputs, tmp_path):
    given = inputs()
    engine, _ = build(given, tmp_path)
    repository, ref = tmp_path / "repository", ArtifactRef(kind="engine", digest="1" * 64)
    golden = [GoldenPrompt(prompt="a", completion="b", maximum_tokens=1)]
    write_repository(engine, golden, {}, given.target, repository, engine_ref=ref)
    assert ref.digest in (repository / "links.json").read_text()


def test_one_gpu_builds_all_ranks_in_turn(inputs, gpu_host, tmp_path):
    gpu_host(H100)
    engine, _ = build(inputs(4), tmp_path)
    assert len(list(engine.glob("rank*.engine"))) == 4


@pytest.mark.parametrize(
    ("how", "says", "advice"),
    [
        ("gpu_memory", "out of GPU memory while compiling", "maximum_batched_tokens"),
        ("killed", "killed by the kernel", "host memory"),
        ("hang", "time limit", "time_limit_minutes"),
    ],
)
def test_a_failing_tool_is_explained_and_leaves_nothing(inputs, tmp_path, fails, *, how, says, advice):
    fails(how)
    with pytest.raises(BuildFailed, match=says) as caught:
        build(inputs(2, build={"time_limit_minutes": 0.02}), tmp_path)
    assert advice in caught.value.hint
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing_rank", "rank1.engine is missing"),
        ("empty_rank", "rank0.engine is missing or empty"),
        ("wrong_setting", "max_batch_size is 8, it should be 16"),
    ],
)
def test_an_engine_that_is_not_what_was_asked_is_never_one(inputs, tmp_path, fails, how, says):
    fails(how)
    with pytest.raises(IntegrityError, match=says):
        build(inputs(2), tmp_path)
    assert left_behind(tmp_path) == []


def test_an_engine_that_lost_what_its_runtime_options_need_is_never_one(inputs, tmp_path):
    given = write_trtllm_checkpoint(tmp_path / "given", algorithm="W4A16_AWQ", kv_algorithm="FP8")
    with pytest.raises(IntegrityError, match="no paged context attention"):
        build(inputs(given=given), tmp_path)
    without = {"chunked_context": False, "kv_cache": {"reuse_blocks": False}}
    build(inputs(given=given, runtime=without), tmp_path)


def test_an_engine_of_another_version_is_never_one(inputs, tmp_path, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", "1.2.0")
    with pytest.raises(IntegrityError, match=r"built by TensorRT-LLM 1\.2\.0, the target has 1\.2\.1"):
        build(inputs(), tmp_path)


@pytest.mark.parametrize(
    ("gpus", "changes", "says"),
    [
        ((H100, H200), {}, "GPUs are of several models"),
        ((H100,), {"ranks": 2, "build": {"flags": {"workers": 2}}}, "2 GPUs are needed, 1 are visible"),
    ],
)
def test_another_host_is_refused_before_the_tool_is_started(inputs, gpu_host, tmp_path, *, gpus, changes, says):
    programs = gpu_host(*gpus)
    (programs / "trtllm-build").unlink()
    with pytest.raises(Unsupported, match=says):
        build(inputs(**changes), tmp_path)


def test_a_host_without_a_gpu_is_refused_before_the_checkpoint_is_read(inputs, gpu_host, tmp_path):
    (gpu_host() / "nvidia-smi").unlink()
    with pytest.raises(Unsupported, match="no NVIDIA driver"):
        build(inputs(given=tmp_path / "not-there"), tmp_path)


def test_an_environment_without_the_tool_is_refused(inputs, gpu_host, tmp_path):
    (gpu_host(H100) / "trtllm-build").unlink()
    with pytest.raises(Unsupported, match="no trtllm-build here"):
        build(inputs(), tmp_path)


def test_another_tensorrt_llm_in_this_interpreter_is_refused(inputs, tmp_path, monkeypatch):
    versions = {"tensorrt_llm": "1.1.0"}
    monkeypatch.setattr(tensorrt_llm_engine, "_installed", versions.get)
    with pytest.raises(Unsupported, match=r"has TensorRT-LLM 1\.1\.0, the target has 1\.2\.1"):
        build(inputs(), tmp_path)


def test_the_installed_tensorrt_is_in_the_facts(inputs, tmp_path, monkeypatch):
    versions = {"tensorrt_cu13": "10.14.1.48"}
    monkeypatch.setattr(tensorrt_llm_engine, "_installed", versions.get)
    _, facts = build(inputs(), tmp_path)
    assert facts.versions == {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}


def test_a_flag_that_the_tool_does_not_know_ends_the_build_at_once(inputs, tmp_path):
    with pytest.raises(BuildFailed, match="--tp_size 2") as caught:
        build(inputs(build={"flags": {"tp_size": 2}}), tmp_path)
    assert "build.flags" in caught.value.hint


def test_a_recipe_without_a_tensorrt_llm_checkpoint_is_told_what_to_set(inputs, tmp_path):
    given = inputs()
    without = BuildInputs(given.checkpoint, given.target)
    with pytest.raises(Unsupported, match="recipe does not export") as caught:
        build(without, tmp_path)
    assert "tensorrt_llm_checkpoint: true" in caught.value.hint


def test_a_checkpoint_without_a_tokenizer_is_refused_before_the_build(inputs, tmp_path):
    given = inputs()
    (given.checkpoint / "tokenizer_config.json").unlink()
    with pytest.raises(IntegrityError, match=r"has no tokenizer_config\.json"):
        build(given, tmp_path)


def test_a_checkpoint_may_say_null_for_no_quantization(inputs, tmp_path):
    given = write_trtllm_checkpoint(tmp_path / "given", algorithm=None, quantization=None)
    _, facts = build(inputs(given=given), tmp_path)
    assert (facts.quantization, facts.kv_cache) == (None, "bfloat16")

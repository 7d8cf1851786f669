"""The LLM API builder, with doubles of TensorRT-LLM and nvidia-smi: our command line, parsing, checks and failures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from llm_pipeline.adapters.tensorrt_llm import llmapi_builder as tensorrt_llm_llmapi
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.engines.tool_process import BuildFailed

REPOSITORY = Path(__file__).parents[2]
DOUBLES = REPOSITORY / "tests" / "doubles"
CHECKPOINT = ArtifactRef(kind="checkpoint", digest="0" * 64)
ANSWERS = {"The capital of France is": " Paris, of course.", "Two and two are": " four.", "One, two,": " three, four."}
H100 = {"name": "NVIDIA H100 80GB HBM3", "compute_cap": "9.0", "memory.total": 81559, "memory.used": 500,
        "driver_version": "590.44.01"}  # fmt: skip


@pytest.fixture(autouse=True)
def gpu_host(monkeypatch, tmp_path):
    """A host with one H100 and TensorRT-LLM 1.2.1, which answers as the checkpoint that was judged."""
    completions = tmp_path / "completions.json"
    completions.write_text(json.dumps(ANSWERS))
    monkeypatch.setenv("PATH", f"{DOUBLES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{DOUBLES / 'tensorrt_llm_package'}{os.pathsep}{REPOSITORY}")
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", "1.2.1")
    monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", json.dumps([H100]))
    monkeypatch.setenv("TRTLLM_DOUBLE_COMPLETIONS", str(completions))
    for name in ("CUDA_VISIBLE_DEVICES", "LLM_PIPELINE_CONTAINER", "TRTLLM_DOUBLE_FAILURE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def checkpoint(tmp_path):
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192, "vocab_size": 512}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "hf_quant_config.json").write_text(
        json.dumps(
            {
                "producer": {"name": "modelopt", "version": "0.47.0"},
                "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
            }
        )
    )
    (directory / "model.safetensors").touch()
    (directory / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True},
                "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": True},
                "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
            }
        )
    )
    return directory


def target(**changes: object) -> Target:
    document = yaml.safe_load((REPOSITORY / "configs/targets/h100.yaml").read_text())
    small = {"maximum_sequences": 4, "maximum_tokens_per_request": 64, "maximum_batched_tokens": 64}
    return Target.model_validate({"name": "h100", **document, "limits": small, **changes})


def build(checkpoint: Path, made_for: Target | None = None, **changes: object) -> Path:
    golden = [GoldenPrompt(prompt=prompt, completion=text, max_tokens=8) for prompt, text in ANSWERS.items()]
    inputs = {"target": made_for or target(), "checkpoint_ref": CHECKPOINT, "golden": golden, **changes}
    engine = checkpoint.parent / "engine"
    engine_builder("tensorrt_llm_llmapi").build(BuildInputs(checkpoint, **inputs), engine)
    return engine


def test_what_is_loaded_fetches_and_sends_nothing(checkpoint, monkeypatch):
    seen = {}
    monkeypatch.setattr(tensorrt_llm_llmapi, "run_tool", lambda _, variables, **__: seen.update(variables))
    with pytest.raises(IntegrityError, match="left no report"):
        build(checkpoint)
    assert seen.items() >= {"HF_HUB_OFFLINE": "1", "TRTLLM_NO_USAGE_STATS": "1"}.items()


def test_an_engine_is_its_llm_args_and_what_was_measured_on_the_host(checkpoint):
    engine = build(checkpoint)
    assert sorted(path.name for path in engine.iterdir()) == ["engine.json", "golden.jsonl", "llm_args.yaml"]
    rendered = yaml.safe_load((engine / "llm_args.yaml").read_text())
    assert rendered == render_llm_args(target(), checkpoint=checkpoint)
    description = EngineDescription.read(engine)
    facts = description.facts
    assert description.checkpoint == CHECKPOINT
    assert (description.host.driver, description.host.gpus[0].sm) == ("590.44.01", "sm90")
    assert (facts.quantization, facts.kv_cache, facts.context_length) == ("FP8", "fp8", 8192)
    assert (facts.device, facts.versions["tensorrt_llm"]) == ("NVIDIA H100 80GB HBM3", "1.2.1")
    assert list(facts.seconds) == ["import", "load", "golden"]
    assert facts.details["golden_match_fraction"] == 1.0
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["checkpoint", "completions.json", "engine"]


def test_a_plain_checkpoint_is_loaded_in_the_precision_of_its_baseline(checkpoint):
    (checkpoint / "hf_quant_config.json").unlink()
    engine = build(checkpoint, dtype="float16")
    rendered = yaml.safe_load((engine / "llm_args.yaml").read_text())
    assert (rendered["dtype"], rendered["kv_cache_config"]["dtype"]) == ("float16", "auto")
    assert EngineDescription.read(engine).facts.quantization is None


def test_few_other_answers_pass_and_are_recorded(checkpoint):
    answers = checkpoint.parent / "completions.json"
    answers.write_text(json.dumps({**ANSWERS, "One, two,": " buckle my shoe"}))
    engine = build(checkpoint)
    assert EngineDescription.read(engine).facts.details["golden_match_fraction"] == pytest.approx(2 / 3)
    assert {one.prompt: one.completion for one in read_golden(engine)}["One, two,"] == " buckle my shoe"


def test_a_model_that_answers_otherwise_is_refused_with_an_example(checkpoint):
    (checkpoint.parent / "completions.json").write_text(json.dumps(dict.fromkeys(ANSWERS, " eh")))
    with pytest.raises(IntegrityError, match=r"0% of 3 golden prompts.*wrote ' eh' instead of ' Paris"):
        build(checkpoint)
    assert not (checkpoint.parent / "engine").exists()


def test_another_version_of_tensorrt_llm_is_refused_before_loading(checkpoint, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", "1.2.0")
    monkeypatch.setenv("TRTLLM_DOUBLE_FAILURE", "it was loaded")
    with pytest.raises(BuildFailed, match=r"1\.2\.0 is installed, the target is for 1\.2\.1") as failed:
        build(checkpoint)
    assert "it was loaded" not in str(failed.value)


def test_another_gpu_is_refused_before_anything_is_loaded(checkpoint, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", json.dumps([{**H100, "name": "NVIDIA L40S", "compute_cap": "8.9"}]))
    monkeypatch.setenv("TRTLLM_DOUBLE_FAILURE", "it was loaded")
    with pytest.raises(Unsupported, match=r"GPU 0 is NVIDIA L40S \(sm89\)"):
        build(checkpoint)


@pytest.mark.parametrize(
    ("failure", "meaning"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "out of GPU memory.*limits.maximum_sequences"),
        ("1 validation error for TorchLlmArgs", "refuses the LLM args, although they fit the recorded schema"),
    ],
)
def test_a_failed_load_is_classified_and_leaves_no_engine(checkpoint, monkeypatch, failure, meaning):
    monkeypatch.setenv("TRTLLM_DOUBLE_FAILURE", failure)
    with pytest.raises(BuildFailed, match=f"(?s){meaning}"):
        build(checkpoint)
    assert sorted(path.name for path in checkpoint.parent.iterdir()) == ["checkpoint", "completions.json"]


def test_a_load_that_takes_too_long_is_stopped(checkpoint, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_FAILURE", "hang")
    with pytest.raises(BuildFailed, match=r"time limit of 0.015 min.*build.time_limit_minutes"):
        build(checkpoint, target(build={"time_limit_minutes": 0.015}))


def test_llm_args_of_another_version_never_reach_a_gpu(checkpoint, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_GPUS", "broken")
    runtime = {"engine_args": {"sampler_type": "TRTLLMSampler"}}
    with pytest.raises(ConfigError, match="sampler_type"):
        build(checkpoint, target(runtime_version="1.3.0rc22", runtime=runtime))


def test_an_engine_of_the_other_dialect_loads_with_its_version(checkpoint, monkeypatch):
    monkeypatch.setenv("TRTLLM_DOUBLE_VERSION", "1.3.0rc22")
    speculation = {"decoding_type": "MTP", "max_draft_len": 2}
    runtime = {"engine_args": {"speculative_config": speculation}}
    engine = build(checkpoint, target(runtime_version="1.3.0rc22", runtime=runtime))
    rendered = yaml.safe_load((engine / "llm_args.yaml").read_text())
    assert rendered["speculative_config"] == speculation
    assert EngineDescription.read(engine).facts.versions["tensorrt_llm"] == "1.3.0rc22"


def test_a_model_that_no_golden_prompt_checks_is_not_built(checkpoint):
    with pytest.raises(ConfigError, match="no golden prompts"):
        build(checkpoint, golden=())

"""The `vllm` builder over a double of vLLM's engine; what it refuses, and what it leaves for the server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("modelopt")

from transformers import AutoTokenizer

from llm_pipeline.adapters.vllm.builder import runtime_properties
from llm_pipeline.artifacts.checkpoint_files import QuantizationMetadata
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.engines.builder import BuildInputs, engine_builder

DRIFTING = 17
"""The last token of prompts whose answers other batches change, in the double."""

DOUBLE = Path(__file__).parents[1] / "doubles" / "vllm_package"
REF = ArtifactRef(kind="checkpoint", digest="c" * 64)
LIMITS = {"maximum_sequences": 3, "maximum_tokens_per_request": 512, "maximum_batched_tokens": 64}
PLAIN = QuantizationMetadata(None)


@pytest.fixture
def vllm(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(DOUBLE))
    monkeypatch.syspath_prepend(str(DOUBLE))


@pytest.fixture
def inputs(checkpoint, target):
    def make(source=checkpoint, **changes):
        fields = {
            "checkpoint": source,
            "target": target(engine="vllm", limits=LIMITS),
            "dtype": "bfloat16",
            "checkpoint_ref": REF,
        }
        return BuildInputs(**{**fields, **changes})

    return make


def test_the_build_names_what_is_served_and_keeps_what_was_compiled(vllm, inputs, tmp_path):
    facts = engine_builder("vllm").build(inputs(), tmp_path / "engine")
    description = EngineDescription.read(tmp_path / "engine")
    assert description.facts == facts
    assert description.checkpoint == REF
    assert (facts.versions["vllm"], facts.kv_cache) == ("0.20.2", "bfloat16")
    compiled = [path for path in (tmp_path / "engine").rglob("*") if path.is_file() and path.name != "engine.json"]
    assert [path.name for path in compiled] == ["checkpoint.graph"]  # by the name that the server's view gives it
    assert facts.bytes == compiled[0].stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]


@pytest.fixture
def asked(checkpoint):
    """A golden prompt that ends with this token, which the double counts on from."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def make(token):
        completion = tokenizer.decode(range(token + 1, token + 7))
        return GoldenPrompt(prompt=f"a{tokenizer.decode([token])}", completion=completion, maximum_tokens=6)

    return make


def test_answers_that_come_again_in_other_batches_are_recorded_whole(vllm, inputs, asked, tmp_path):
    golden = [asked(5), asked(9)]
    facts = engine_builder("vllm").build(inputs(golden=golden), tmp_path / "engine")
    assert read_golden(tmp_path / "engine") == golden
    assert [facts.details[f"golden_{what}"] for what in ("match_fraction", "repeated_fraction", "prompts")] == [1, 1, 2]


def test_answers_that_other_batches_change_are_recorded_as_far_as_they_are_sure(vllm, inputs, asked, tmp_path):
    drifting, never_sure = asked(DRIFTING), asked(5)
    facts = engine_builder("vllm").build(inputs(golden=[drifting] * 3 + [never_sure]), tmp_path / "engine")
    recorded = read_golden(tmp_path / "engine")
    assert recorded == [drifting.model_copy(update={"completion": drifting.completion[:2], "opens": True})] * 3
    assert facts.details["golden_repeated_fraction"] == 0.25
    wanted, got = recorded[0].compared(drifting.completion)
    assert wanted == got
    assert len(set(recorded[0].compared("something else"))) == 2


def test_a_load_that_fails_is_told_in_vllms_words(vllm, inputs, checkpoint, target, tmp_path):
    claims = tmp_path / "claims"
    shutil.copytree(checkpoint, claims)
    config = json.loads((claims / "config.json").read_text())
    (claims / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 100_000}))
    long = target(engine="vllm", limits=LIMITS | {"maximum_tokens_per_request": 8192})
    with pytest.raises(Unsupported, match="greater than the derived one"):
        engine_builder("vllm").build(inputs(claims, target=long), tmp_path / "engine")


def test_an_interpreter_without_vllm_cannot_build(inputs, tmp_path):
    with pytest.raises(Unsupported, match="needs vllm, which this interpreter does not have"):
        engine_builder("vllm").build(inputs(), tmp_path / "engine")


@pytest.mark.parametrize(("sequences", "tokens"), [(64, 1024), (1024, 2048)])
def test_steps_with_a_prompt_are_graphs_too_unless_the_target_has_none(target, sequences, tokens):
    gpu = {"engine": "vllm", "accelerator": "H100-SXM-80GB", "accelerator_count": 1}
    places = (
        target(**gpu, limits=LIMITS | {"maximum_sequences": sequences}),
        target(**gpu, runtime={"cuda_graphs": False}),
        target(engine="vllm"),  # on a CPU
    )
    arguments = [json.loads(runtime_properties(place, "float16", PLAIN)["arguments"]) for place in places]
    assert [one.get("max_cudagraph_capture_size") for one in arguments] == [tokens, None, None]


def test_the_targets_options_become_engine_arguments(target):
    place = target(
        engine="vllm",
        parallelism={"tensor": 2},
        runtime={"cuda_graphs": False, "kv_cache": {"free_memory_fraction": 0.5, "reuse_blocks": False}},
    )
    arguments = json.loads(runtime_properties(place, "float16", PLAIN)["arguments"])
    assert arguments["tensor_parallel_size"] == 2
    assert (arguments["gpu_memory_utilization"], arguments["enable_prefix_caching"]) == (0.5, False)
    assert (arguments["enforce_eager"], arguments["kv_cache_dtype"], arguments["dtype"]) == (True, "auto", "float16")
    assert arguments["trust_remote_code"] is False
    fp8 = QuantizationMetadata("FP8", "FP8")
    assert json.loads(runtime_properties(place, "float16", fp8)["arguments"])["kv_cache_dtype"] == "fp8"

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("modelopt")

import tiny_llama
import torch

from llm_pipeline.adapters.transformers import builder as transformers_torch
from llm_pipeline.adapters.transformers.builder import runtime_properties
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.serving.models.transformers_batcher import Batcher, Settings

REF = ArtifactRef(kind="checkpoint", digest="c" * 64)
LIMITS = {"maximum_sequences": 3, "maximum_tokens_per_request": 512, "maximum_batched_tokens": 64}
PROMPTS = tiny_llama.prompts(8)
TOKENS = 20


@pytest.fixture(scope="module")
def inputs(checkpoint, target):
    def make(source=checkpoint, **changes):
        place = target(engine="transformers_torch", limits=LIMITS)
        fields = {"checkpoint": source, "target": place, "dtype": "bfloat16", "checkpoint_ref": REF}
        return BuildInputs(**{**fields, **changes})

    return make


@pytest.fixture(scope="module")
def batcher(checkpoint):
    settings = Settings("cpu", "float32", "paged|sdpa", False, cache_blocks=6, **LIMITS)
    made = Batcher(checkpoint, settings)
    yield made
    made.stop()


def collect(batcher, names):
    """Everything that is generated for these requests."""
    tokens, reasons = {name: [] for name in names}, {}
    while len(reasons) < len(tokens):
        for output in batcher.outputs(5.0):
            assert not output.error
            tokens[output.name] += output.tokens
            if output.finish_reason:
                reasons[output.name] = output.finish_reason
    return tokens, reasons


def test_requests_that_share_steps_get_the_tokens_that_they_get_alone(batcher, checkpoint):
    model = tiny_llama.read_back(checkpoint)
    expected = tiny_llama.greedy_torch(model, checkpoint, PROMPTS[:3], TOKENS)
    for number, prompt in enumerate(PROMPTS[:3]):
        batcher.submit(str(number), batcher.tokenizer.encode(prompt), TOKENS, ignore_eos=True)
    tokens, reasons = collect(batcher, "012")
    assert [tokens[name] for name in "012"] == expected
    assert set(reasons.values()) == {"length"}


def test_a_request_starts_only_when_its_whole_answer_fits(batcher):
    assert batcher.blocks == 6
    assert batcher.fits(1023)  # 4 blocks hold so many tokens; the scheduler may take one more
    assert not batcher.fits(1280)
    batcher.submit("a", [5] * 8, 500, ignore_eos=True)
    assert batcher.has_room(500)
    batcher.submit("b", [6] * 8, 500, ignore_eos=True)
    assert not batcher.has_room(8)
    batcher.cancel("a")
    assert batcher.has_room(500)
    batcher.cancel("b")


def test_a_cancelled_request_frees_its_cache_and_is_heard_of_no_more(batcher):
    batcher.submit("long", batcher.tokenizer.encode(PROMPTS[0]), 400, ignore_eos=True)
    assert batcher.outputs(5.0)[0].name == "long"
    batcher.cancel("long")
    batcher.submit("next", batcher.tokenizer.encode(PROMPTS[1]), 4, ignore_eos=True)
    tokens, _ = collect(batcher, ["next"])
    assert len(tokens["next"]) == 4
    assert batcher.cache_usage == 0.0


def test_no_more_requests_run_than_the_limit(batcher):
    for name in "abc":
        batcher.submit(name, [5, 6], 2, ignore_eos=True)
    assert not batcher.has_room(4)
    collect(batcher, "abc")
    assert batcher.has_room(4)


def test_a_batcher_starts_again_with_an_empty_cache(batcher):
    batcher.submit("lost", [5] * 8, 400, ignore_eos=True)
    batcher.stop()
    batcher.start()
    assert batcher.cache_usage == 0.0
    batcher.submit("new", [5, 6], 3, ignore_eos=True)
    assert len(collect(batcher, ["new"])[0]["new"]) == 3


def test_the_build_links_the_checkpoint_and_records_how_it_was_loaded(inputs, checkpoint, tmp_path):
    model = tiny_llama.load_model(checkpoint, torch.bfloat16)
    (tokens,) = tiny_llama.greedy_torch(model, checkpoint, PROMPTS[:1], 1)
    completion = tiny_llama.PreTrainedTokenizerFast.from_pretrained(checkpoint).decode(tokens)
    golden = [GoldenPrompt(prompt=PROMPTS[0], completion=completion, maximum_tokens=1)]
    facts = engine_builder("transformers_torch").build(inputs(golden=golden), tmp_path / "engine")
    description = EngineDescription.read(tmp_path / "engine")
    assert description.facts == facts
    assert description.checkpoint == REF
    assert [path.name for path in (tmp_path / "engine").iterdir()] == ["engine.json"]
    assert description.runtime_properties == {
        "device": "cpu", "dtype": "bfloat16", "attention": "paged|sdpa", "cuda_graphs": "false", "threads": "1",
    }  # fmt: skip
    assert facts.details["golden_match_fraction"] == 1.0
    assert facts.details["checkpoint_bytes"] == (checkpoint / "model.safetensors").stat().st_size
    assert facts.versions["transformers"]
    assert facts.context_length == tiny_llama.CONTEXT
    assert facts.batched_tokens_per_second > 0


def test_a_checkpoint_that_answers_otherwise_than_it_was_judged_is_refused(inputs, tmp_path):
    golden = [GoldenPrompt(prompt=PROMPTS[0], completion="never this", maximum_tokens=2)]
    with pytest.raises(IntegrityError, match="0% of 1 golden prompts"):
        engine_builder("transformers_torch").build(inputs(golden=golden), tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_quantized_checkpoints_are_refused_before_anything_is_loaded(inputs, checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr(transformers_torch, "Batcher", None)
    quantized = shutil.copytree(checkpoint, tmp_path / "quantized")
    says = {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": {"quant_algo": "FP8"}}
    (quantized / "hf_quant_config.json").write_text(json.dumps(says))
    with pytest.raises(Unsupported, match=r"FP8.*drops their scales"):
        engine_builder("transformers_torch").build(inputs(quantized), tmp_path / "engine")


def test_what_it_cannot_do_is_refused(inputs, target, tmp_path):
    with pytest.raises(ConfigError, match="no name there"):
        engine_builder("transformers_torch").build(inputs(checkpoint_ref=None), tmp_path / "engine")
    two = target(engine="transformers_torch", parallelism={"tensor": 2})
    with pytest.raises(Unsupported, match="on one GPU"):
        engine_builder("transformers_torch").build(inputs(target=two), tmp_path / "engine")


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        ({"model_type": "llama"}, "paged|varlen"),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, "paged|varlen"),
        ({"model_type": "mistral", "sliding_window": 4096}, "paged|sdpa"),
        ({"model_type": "gemma3_text"}, "paged|sdpa"),
    ],
)
def test_only_plain_causal_attention_goes_to_the_variable_length_kernel(config, attention, target):
    gpu = target(accelerator="H200-SXM-141GB", accelerator_count=1, engine="transformers_torch")
    assert runtime_properties(gpu, "bfloat16", config)["attention"] == attention

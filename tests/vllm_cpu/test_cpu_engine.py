"""The engine `vllm` with vLLM itself, on a CPU; `make vllm` makes the environment that has it."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vLLM is not in this environment: `make vllm`, then run it with .envs/vllm")

from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_pipeline.adapters.vllm.builder import runtime_properties
from llm_pipeline.artifacts.checkpoint_files import read_quantization
from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GoldenPrompt
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder
from llm_pipeline.serving.models.vllm_batcher import Batcher, Settings

pytestmark = pytest.mark.thorough

PROMPTS = ("7 + 5 =", "3 + 9 =", "4 + 4 =", "11 + 2 =", "6 + 8 =", "1 + 1 =", "9 + 9 =", "12 + 3 =")
TARGET = Target(
    name="cpu_vllm",
    accelerator="cpu",
    accelerator_count=0,
    engine="vllm",
    limits={"maximum_sequences": 4, "maximum_tokens_per_request": 128, "maximum_batched_tokens": 128},
    runtime={"cuda_graphs": False, "kv_cache": {"free_memory_fraction": 0.1}},
)


def golden(checkpoint):
    """What Transformers answers, greedily."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**tokens, max_new_tokens=8, do_sample=False)[0, tokens["input_ids"].shape[1] :]
        yield GoldenPrompt(prompt=prompt, completion=tokenizer.decode(made, skip_special_tokens=True), maximum_tokens=8)


def test_a_plain_checkpoint_is_built_for_a_cpu_and_answers_as_transformers_does(source, tmp_path):
    inputs = BuildInputs(
        checkpoint=source,
        target=TARGET,
        dtype="float32",
        checkpoint_ref=ArtifactRef(kind="checkpoint", digest="c" * 64),
        golden=list(golden(source)),
    )
    facts = engine_builder("vllm").build(inputs, tmp_path / "engine")
    assert facts.details["golden_match_fraction"] == 1.0
    assert (facts.details["read_as"], facts.kv_cache) == ("none", "float32")
    assert EngineDescription.read(tmp_path / "engine").facts == facts
    assert list((tmp_path / "engine" / "compiled" / "modelinfos").glob("*.json"))  # found again by every server


@contextmanager
def batcher_of(source, target=TARGET):
    properties = runtime_properties(target, "float32", read_quantization(source))
    ends = [AutoTokenizer.from_pretrained(source).eos_token_id]
    batcher = Batcher(source, Settings.of(properties, target.limits.model_dump(), end_tokens=ends))
    try:
        yield batcher
    finally:
        batcher.stop()


def answered(batcher, prompt, maximum_tokens, **options):
    """The tokens of an answer."""
    batcher.submit("1", prompt, maximum_tokens, **options)
    tokens, ended = [], False
    while not ended:
        for output in batcher.outputs(timeout_seconds=60):
            assert not output.error
            tokens, ended = [*tokens, *output.tokens], bool(output.finish_reason)
    return tokens


def test_an_answer_follows_a_json_schema(source):
    tokenizer = AutoTokenizer.from_pretrained(source)
    with batcher_of(source) as batcher:
        tokens = answered(batcher, tokenizer("7 + 5 =")["input_ids"], 40, json_schema='{"enum": ["yes", "no"]}')
    assert json.loads(tokenizer.decode(tokens, skip_special_tokens=True)) in ("yes", "no")


def test_speculation_by_ngrams_changes_no_answer_and_is_counted(source):
    ngrams = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    variant = TARGET.model_copy(update={"variants": {"ngram": {"speculative_config": ngrams}}}).varied("ngram")
    tokenizer = AutoTokenizer.from_pretrained(source)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    with batcher_of(source) as plain:
        wanted = [answered(plain, prompt, 40, ignore_eos=True) for prompt in prompts]
        assert (plain.load["drafts"], plain.load["accepted"]) == (0, 0)
    with batcher_of(source, variant) as speculating:
        assert [answered(speculating, prompt, 40, ignore_eos=True) for prompt in prompts] == wanted
        assert 0 < speculating.load["accepted"] <= 3 * speculating.load["drafts"]

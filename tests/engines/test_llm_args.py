"""The LLM-args file: what a target renders to, and what the recorded schemas refuse."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.recorded_schema import edition_of
from llm_pipeline.engines.llm_args.rendering import render_llm_args

GOLDEN = Path(__file__).parent / "llm_args"
TARGETS = Path(__file__).parents[2] / "configs" / "targets"
OLD, NEW = "1.2.1", "1.3.0rc22"


def target(version: str = OLD, **changes: object) -> Target:
    document = yaml.safe_load((TARGETS / "h100.yaml").read_text())
    return Target.model_validate({"name": "h100", **document, "runtime_version": version, **changes})


def write_checkpoint(directory: Path, algorithm: str | None = None, kv_cache: str | None = None) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 8192, "vocab_size": 64})
    )
    (directory / "model.safetensors").touch()
    (directory / "generation_config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    if algorithm or kv_cache:
        quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": kv_cache}
        producer = {"name": "modelopt", "version": "0.47.0"}
        (directory / "hf_quant_config.json").write_text(
            json.dumps({"producer": producer, "quantization": quantization})
        )
    return directory


GOLDEN_TARGETS = {
    "h100_1_2": target(),
    "h100_main": target(NEW),
    "tp2_ep2_main": target(NEW, accelerator_count=2, parallelism={"tensor": 2, "expert": 2},
                           runtime={"engine_args": {"moe_config": {"backend": "CUTLASS"}}}),
    "tp2_1_2": target(accelerator_count=2, parallelism={"tensor": 2}),
    "all_options_1_2": target(
        limits={"maximum_sequences": 64, "maximum_batched_tokens": 4096, "kv_cache_blocks": 512},
        runtime={
            "kv_cache": {"free_memory_fraction": 0.8, "reuse_blocks": False},
            "cuda_graphs": False, "chunked_context": False, "scheduler": "max_utilization",
            "engine_args": {"enable_autotuner": False, "kv_cache_config": {"copy_on_partial_reuse": False}},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_TARGETS)
def test_a_target_renders_to_its_golden_file_which_its_version_accepts(name):
    of = GOLDEN_TARGETS[name]
    arguments = render_llm_args(of, checkpoint=None)
    text = yaml.safe_dump(arguments, sort_keys=False)
    if "UPDATE_GOLDEN" in os.environ:
        (GOLDEN / f"{name}.yaml").write_text(text)
    assert text == (GOLDEN / f"{name}.yaml").read_text()
    assert check_llm_args(arguments, of.runtime_version).errors == ()


def test_the_kv_cache_has_the_type_that_the_checkpoint_was_quantized_for(tmp_path):
    fp8 = write_checkpoint(tmp_path / "fp8", "FP8", "FP8")
    assert render_llm_args(target(), checkpoint=fp8)["kv_cache_config"]["dtype"] == "fp8"
    int8 = write_checkpoint(tmp_path / "int8", "FP8", "INT8")
    with pytest.raises(Unsupported, match=r"no KV cache of INT8.*kv_cache: fp8"):
        render_llm_args(target(), checkpoint=int8)


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ({"kv_cache_config": {"dtype": "fp8"}}, "kv_cache_config.dtype"),
        ({"trust_remote_code": True}, "trust_remote_code"),
    ],
)
def test_extra_arguments_never_override_what_the_target_says(extra, key):
    with pytest.raises(ConfigError, match=rf"{key} is rendered from the target already"):
        render_llm_args(target(runtime={"engine_args": extra}), checkpoint=None)


def test_versions_are_read_in_the_nearest_recorded_dialect_or_refused():
    names = {version: edition_of(version) for version in ("1.0.0", "1.2.0rc8", "1.2.1", NEW, "1.3.0", "1.4.0rc1")}
    assert names == {
        "1.0.0": "1.2.x", "1.2.0rc8": "1.2.x", "1.2.1": "1.2.x", NEW: "main", "1.3.0": "main", "1.4.0rc1": "main",
    }  # fmt: skip
    for version in ("0.20.0", "1.3.0rc15", "newest", ""):
        with pytest.raises(Unsupported, match=r"not recorded.*1\.2\.1"):
            edition_of(version)


@pytest.mark.parametrize(
    ("version", "document", "error"),
    [
        (OLD, {"max_batchsize": 8}, "max_batchsize: unknown key -> did you mean max_batch_size"),
        (OLD, {"kv_cache_config": {"max_token": 8}}, "kv_cache_config.max_token: unknown key -> did you mean max_tok"),
        (OLD, {"tp_size": 2}, "tp_size: unknown key -> tensor_parallel_size"),
        (OLD, {"cuda_graph_padding_enabled": True}, "unknown key -> cuda_graph_config.enable_padding"),
        (OLD, {"quant_config": {}}, "quant_config: unknown key -> (comes from the checkpoint)"),
        (OLD, {"generation_config": "auto"}, "generation_config: unknown key"),
        (NEW, {"kv_cache_config": {"onboard_blocks": True}}, "kv_cache_config.onboard_blocks: unknown key"),
        (OLD, {"max_batch_size": "8"}, "max_batch_size: '8' is not of type"),
        (OLD, {"kv_cache_config": {"free_gpu_memory_fraction": 1.5}}, "greater than the maximum"),
        (OLD, {"moe_config": {"backend": "DENSEGEMM"}}, "'DENSEGEMM' is not legal -> legal: AUTO, CUTEDSL, CUTLASS"),
        (NEW, {"moe_config": {"backend": "WIDEEP"}}, "'WIDEEP' is not legal -> legal: AUTO"),
        (OLD, {"scheduler_config": {"capacity_scheduler_policy": "max"}}, "'max' is not legal -> legal: GUARANTEED_NO"),
        (OLD, {"speculative_config": {"decoding_type": "ngram"}}, "'ngram' is not legal -> legal: AUTO, DraftTarget"),
        (OLD, {"speculative_config": {"decoding_type": "NGram", "max_draft_len": 2, "max_ngram_size": 2}},
         "speculative_config.max_ngram_size: unknown key -> did you mean max_matching_ngram_size"),
        (OLD, {"speculative_config": {"decoding_type": []}}, "decoding_type: [] is not legal -> legal: AUTO"),
        (NEW, {"speculative_config": {"decoding_type": "NGram"}}, "'max_draft_len' is a required property"),
    ],
)  # fmt: skip
def test_what_a_version_refuses_is_an_error_that_says_what_to_write(version, document, error):
    check = check_llm_args({"model": "x", **document}, version)
    assert len(check.errors) == 1
    assert error in check.errors[0]
    with pytest.raises(ConfigError, match=f"TensorRT-LLM {version} refuses these LLM args") as refused:
        check.require("model.yaml")
    assert check.errors[0] in refused.value.message


@pytest.mark.parametrize(
    ("version", "document", "warning"),
    [
        ("1.1.0", {}, "recorded for 1.2.x: 1.1.0 may lack"),
        ("1.4.0rc1", {}, "recorded before 1.4.0rc1, which may have dropped some"),
        ("1.4.0rc1", {"quantum_entanglement": True}, "quantum_entanglement: unknown key"),
        ("1.4.0rc1", {"speculative_config": {"decoding_type": "DFlash", "max_draft_len": 2, "speculative_model": "d",
                                             "attention_backend": "FA4"}}, "'FA4' is not legal"),
    ],
)  # fmt: skip
def test_what_the_recording_is_not_sure_of_is_a_warning(version, document, warning):
    check = check_llm_args({"model": "x", **document}, version)
    assert check.errors == ()
    assert any(warning in found for found in check.warnings)


def test_a_plain_file_has_no_warnings():
    for version in (OLD, NEW):
        document = render_llm_args(target(version), checkpoint=None)
        assert check_llm_args(document, version).warnings == ()

"""The command line of trtllm-build, what it reads, and what it must have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError
from trtllm_checkpoint import write_trtllm_checkpoint

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.checkpoint import (
    CheckpointConfig,
    read_build_checkpoint,
    refuse_other_ranks,
)
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import (
    build_flags,
    command_problems,
    flag_problems,
    refused_on,
    removed_flags,
    render_build_command,
)
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.output_check import (
    check_engine,
    context_attention,
    predict_config,
    refuse_lost_features,
)
from llm_pipeline.adapters.tensorrt_llm.trtllm_build.progress import BuildProgress, TimingCache, blames_timing_cache
from llm_pipeline.base.errors import ConfigError, IntegrityError, Unsupported
from llm_pipeline.config.target import Target
from llm_pipeline.engines.failures import classify_failure

DOUBLES = Path(__file__).parents[1] / "doubles"


def target(tensor=1, pipeline=1, **changes):
    fields = {
        "name": "h100_engine",
        "accelerator": "H100-SXM5-80GB",
        "accelerator_count": tensor * pipeline,
        "engine": "tensorrt_llm_engine",
        "parallelism": {"tensor": tensor, "pipeline": pipeline},
        "runtime_version": "1.2.1",
        "limits": {"maximum_sequences": 48, "maximum_tokens_per_request": 8192, "maximum_batched_tokens": 8192},
    }
    return Target.model_validate({**fields, **changes})


def command(of, **paths):
    rendered = render_build_command(of, Path("/in"), Path("/out"), new_timing_cache=Path("/new"), **paths)
    return " ".join(rendered)


# The table


def test_the_table_has_all_recorded_flags():
    groups = Counter(flag.group for flag in build_flags().values())
    assert groups == {"general": 29, "logits": 4, "lora": 4, "speculative": 2, "plugin": 12, "feature": 16}
    assert sum(groups.values()) == 67
    assert len(removed_flags()) == 17
    assert not set(removed_flags()) & set(build_flags())
    assert {flag.key for flag in build_flags().values() if flag.status != "current"} == {
        "paged_kv_cache", "gather_generation_logits", "streamingllm",
    }  # fmt: skip
    assert len(refused_on("sm100")) == 5


def test_what_the_table_says_of_other_flags_names_flags_of_the_table():
    named = [name for flag in build_flags().values() for name in (*flag.requires, *flag.conflicts)]
    assert named
    assert {name.partition(" ")[0].removeprefix("--") for name in named} <= set(build_flags())


# The command line


def test_the_command_of_a_plain_target():
    assert command(target()) == (
        "trtllm-build --checkpoint_dir /in --output_dir /out --max_batch_size 48 --max_seq_len 8192 "
        "--max_input_len 8191 --max_num_tokens 8192 --kv_cache_type paged --remove_input_padding enable "
        "--max_beam_width 1 --tokens_per_block 32 --use_paged_context_fmha enable --use_fp8_context_fmha enable "
        "--gpt_attention_plugin auto --gemm_plugin auto --workers 1 --output_timing_cache /new"
    )


def test_the_command_of_a_target_with_options():
    options = target(
        4,
        build={
            "flags": {
                "workers": 2,
                "gpt_attention_plugin": "bfloat16",
                "use_fp8_context_fmha": False,
                "reduce_fusion": True,
                "user_buffer": True,
                "fast_build": True,
                "weight_sparsity": False,
                "lora_plugin": "auto",
                "lora_target_modules": "attn_q, attn_v",
                "max_lora_rank": 16,
            },
        },
    )
    assert command(options, timing_cache=Path("/old"), program="/bin/trtllm-build") == (
        "/bin/trtllm-build --checkpoint_dir /in --output_dir /out --max_batch_size 48 --max_seq_len 8192 "
        "--max_input_len 8191 --max_num_tokens 8192 --kv_cache_type paged --remove_input_padding enable "
        "--max_beam_width 1 --tokens_per_block 32 --use_paged_context_fmha enable --use_fp8_context_fmha disable "
        "--gpt_attention_plugin bfloat16 --gemm_plugin auto --workers 2 --reduce_fusion enable --user_buffer enable "
        "--fast_build --lora_plugin auto --lora_target_modules attn_q attn_v --max_lora_rank 16 "
        "--input_timing_cache /old --output_timing_cache /new"
    )


def test_another_spelling_is_given_by_its_first_name():
    assert "--max_prompt_embedding_table_size 64 " in command(target(build={"flags": {"max_multimodal_len": 64}}))


def test_a_step_takes_no_more_tokens_than_all_sequences_have():
    limits = {"maximum_sequences": 2, "maximum_tokens_per_request": 1024, "maximum_batched_tokens": 8192}
    assert "--max_num_tokens 2048 " in command(target(limits=limits))


def test_ranks_are_no_flags_and_one_worker_builds_them_all_on_one_host():
    sixteen = command(target(8, 2))
    assert sixteen == command(target())
    assert "--workers 1 " in sixteen


def test_one_error_names_all_problems():
    flags = {"tp_size": 2, "max_batchsize": 3, "max_lora_rank": "much", "workers": 2}
    with pytest.raises(ConfigError, match="4 of the options") as caught:
        command(target(build={"flags": flags}))
    for text in ("--tp_size was removed", "did you mean max_batch_size", "max_lora_rank takes", "the engine has 1"):
        assert text in caught.value.message


@pytest.mark.parametrize("name", removed_flags())
def test_each_removed_flag_is_refused_with_what_became_of_it(name):
    assert flag_problems({name: 1}, "sm90") == (f"--{name} was removed from trtllm-build: {removed_flags()[name]}",)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"--fast_build": True}, "write fast_build without dashes"),
        ({"fast_build": "enable"}, "--fast_build takes true or false, not 'enable'"),
        ({"opt_num_tokens": True}, "--opt_num_tokens takes a whole number, not True"),
        ({"opt_num_tokens": -1}, "--opt_num_tokens takes a whole number, not -1"),
        ({"moe_plugin": "int4"}, "--moe_plugin cannot be int4: it is one of auto, float16"),
        ({"moe_plugin": "--tp"}, "--moe_plugin takes a word"),
        ({"lora_plugin": "auto", "lora_target_modules": "attn_q,mlp"}, "--lora_target_modules cannot be mlp"),
        ({"lora_target_modules": "attn_q"}, "--lora_target_modules needs --lora_plugin"),
        ({"streamingllm": True}, "--streamingllm is not supported any more"),
        ({"gather_generation_logits": True}, "--gather_generation_logits is deprecated"),
        ({"user_buffer": True}, "--user_buffer needs --reduce_fusion enable"),
        ({"gemm_swiglu_plugin": "fp8", "use_fused_mlp": False}, "--gemm_swiglu_plugin needs --use_fused_mlp enable"),
        ({"max_decoder_seq_len": 9}, "--max_seq_len is set by limits.maximum_tokens_per_request"),
        ({"kv_cache_type": "continuous"}, "--kv_cache_type cannot be set: in-flight batching"),
        ({"max_multimodal_len": True}, "--max_prompt_embedding_table_size takes a whole number"),
        ({"model_cls_file": "/x.py"}, "--model_cls_file cannot be set: it would run code"),
        ({"strip_plan": True}, "--strip_plan cannot be set: an engine without weights"),
    ],
)
def test_a_flag_that_cannot_be_used_is_refused(flags, problem):
    problems = command_problems(target(build={"flags": flags}))
    assert [found for found in problems if found.startswith(problem)], problems


@pytest.mark.parametrize(
    "flags",
    [{"streamingllm": False}, {"user_buffer": "disable"}, {"gemm_swiglu_plugin": "fp8"}, {"opt_num_tokens": 64}],
)
def test_a_flag_that_is_off_or_fits_is_not_refused(flags):
    assert command_problems(target(build={"flags": flags})) == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"build": {"flags": {"multiple_profiles": True, "opt_num_tokens": 64}}}, "cannot be used with --opt_num_tok"),
        ({"build": {"flags": {"gpt_attention_plugin": "fp8"}}}, "--gpt_attention_plugin cannot be fp8"),
        ({"build": {"flags": {"reduce_fusion": True}}}, "reduce_fusion needs tensor parallelism"),
        ({"limits": {"maximum_batched_tokens": 16}}, "smaller than a KV block of 32"),
        (
            {"runtime": {"chunked_context": False}, "limits": {"maximum_batched_tokens": 1024}},
            "prompts of more than 1024 tokens",
        ),
        (
            {"build": {"flags": {"max_draft_len": 4, "gather_context_logits": True}}},
            "--gather_context_logits cannot be used with --max_draft_len",
        ),
    ],
)
def test_options_that_make_no_engine_are_refused(changes, problem):
    problems = command_problems(target(**changes))
    assert len(problems) == 1
    assert problem in problems[0]


@pytest.mark.parametrize("name", refused_on("sm100"))
def test_each_flag_that_blackwell_refuses_is_refused_there(name):
    value = {"bert_context_fmha_fp32_acc": True, "fp8_rowwise_gemm_plugin": "auto"}.get(name, "fp8")
    assert f"--{name} is refused on sm100" in flag_problems({name: value}, "sm100")
    assert f"--{name} is refused on sm90" not in flag_problems({name: value}, "sm90")


def test_a_flag_for_hopper_is_refused_elsewhere():
    assert flag_problems({"gemm_swiglu_plugin": "fp8"}, "sm89") == (
        "--gemm_swiglu_plugin is for sm90 only, this is sm89",
    )


# The checkpoint


def test_a_sound_checkpoint_is_read_without_its_weights(tmp_path):
    made = read_build_checkpoint(write_trtllm_checkpoint(tmp_path / "in", tensor=2, pipeline=2), target(2, 2))
    assert len(made.rank_bytes) == 4
    assert (made.config.algorithm, made.config.kv_algorithm) == ("FP8", "FP8")


def _mapping(**changes):
    return {"mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1, **changes}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (_mapping(world_size=2), "world_size 2 is not tp_size x pp_size x cp_size"),
        (_mapping(world_size=2, cp_size=2), "mapping.cp_size is 2"),
        ({"quantization": {"quant_algo": "FP7"}}, "quantization.quant_algo"),
        ({"quantization": {"quant_algo": "INT8"}}, "a format of KV caches only"),
        ({"quantization": {"quant_algo": "MIXED_PRECISION"}}, "needs quant_cfg.json"),
        ({"quantization": {"quant_algo": "W4A16_AWQ", "group_size": None}}, "needs a group_size"),
        ({"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 96}}, "hidden_size 256 is not a multiple"),
        ({"hidden_size": "256"}, "hidden_size: Input should be a valid integer"),
        ({"dtype": "int4"}, "dtype: Input should be 'float16', 'bfloat16' or 'float32'"),
    ],
)
def test_a_checkpoint_that_says_something_illegal_is_refused(tmp_path, changes, problem):
    with pytest.raises(IntegrityError, match=problem):
        read_build_checkpoint(write_trtllm_checkpoint(tmp_path / "in", **changes), target())


@pytest.mark.parametrize(
    ("tensor", "pipeline", "changes", "problem"),
    [
        (3, 1, {}, "8 attention heads are not divisible by tp_size 3"),
        (2, 1, {"num_key_value_heads": 3}, "3 key and value heads do not spread over tp_size 2"),
        (1, 3, {}, "4 layers are not divisible by pp_size 3"),
        (
            4,
            1,
            {"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 256}},
            "intermediate_size / tp_size 128 is not a multiple of the group size 256",
        ),
    ],
)
def test_a_model_that_does_not_spread_over_its_ranks_is_refused(tmp_path, tensor, pipeline, changes, problem):
    made = write_trtllm_checkpoint(tmp_path / "in", tensor=tensor, pipeline=pipeline, **changes)
    with pytest.raises(IntegrityError, match=problem):
        read_build_checkpoint(made, target(tensor, pipeline))


def _remove(path):
    path.unlink()


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        (_remove, "config.json", "no such file"),
        (_cut, "config.json", "not usable JSON"),
        (_remove, "rank1.safetensors", "the weights of ranks 1 of 2 are missing"),
        (_cut, "rank1.safetensors", "is truncated"),
        (_empty, "rank0.safetensors", "not a sound safetensors file"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage, file, problem):
    made = write_trtllm_checkpoint(tmp_path / "in", tensor=2)
    damage(made / file)
    with pytest.raises(IntegrityError, match=problem):
        read_build_checkpoint(made, target(2))


def test_weights_of_more_ranks_than_the_mapping_has_are_refused(tmp_path):
    made = write_trtllm_checkpoint(tmp_path / "in", tensor=2)
    (made / "rank1.safetensors").rename(made / "rank2.safetensors")
    with pytest.raises(IntegrityError, match=r"ranks 1 of 2 are missing; there are weights of ranks 2"):
        read_build_checkpoint(made, target(2))


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_a_checkpoint_of_other_ranks_than_the_targets_is_refused_with_the_way_out(tensor, pipeline):
    refuse_other_ranks(target(), 1, 1)
    with pytest.raises(Unsupported, match=f"for 1 x 1 ranks .* has {tensor} x {pipeline}") as caught:
        refuse_other_ranks(target(tensor, pipeline), 1, 1)
    assert "tensorrt_llm_llmapi" in caught.value.hint


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"hidden_act": None},
        {"dtype": "int8"},
        {"num_hidden_layers": 0},
        {"vocab_size": "512"},
        {"head_size": None},
        {"mapping": {"world_size": 1}},
        {"mapping": {"world_size": 1, "tp_size": 0, "pp_size": 1}},
        {"quantization": None},
        {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP4"}},
        {"quantization": {"quant_algo": "W4A8_AWQ", "group_size": 128, "has_zero_point": False}},
        {"quantization": {"quant_algo": "fp8"}},
        {"logits_dtype": "bfloat16"},
        {"some_new_key": 1},
    ],
)
def test_descriptions_are_judged_as_the_recorded_schema_judges_them(tmp_path, change):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((DOUBLES / "recorded" / "trt_checkpoint_config.json").read_text())
    made = write_trtllm_checkpoint(tmp_path / "in", **change)
    config = json.loads((made / "config.json").read_text())
    try:
        CheckpointConfig.model_validate(config)
    except ValidationError:
        legal = False
    else:
        legal = True
    assert legal == jsonschema.Draft202012Validator(schema).is_valid(config)


# What the tool changes by itself


@pytest.mark.parametrize(
    ("algorithm", "kv_algorithm", "sm", "kernels"),
    [
        ("FP8", "FP8", "sm90", (True, True)),
        ("FP8", None, "sm90", (True, False)),
        ("W4A8_AWQ", "FP8", "sm89", (True, True)),
        ("NVFP4", "FP8", "sm100", (True, True)),
        (None, None, "sm90", (True, False)),
        ("W4A16_AWQ", None, "sm86", (True, False)),
        ("W4A16_AWQ", "FP8", "sm90", (False, False)),
        ("FP8", "INT8", "sm90", (False, False)),
        ("FP8", "FP8", "sm80", (False, False)),
    ],
)
def test_context_attention_by_format_and_gpu(algorithm, kv_algorithm, sm, kernels):
    asked = {"use_paged_context_fmha": True, "use_fp8_context_fmha": True}
    found = context_attention(algorithm, kv_algorithm, sm, asked)
    assert (found.paged, found.fp8) == kernels
    assert bool(found.why) == (kernels != (True, True))


def test_fp8_attention_is_switched_on_for_an_fp8_cache():
    asked = {"use_paged_context_fmha": True, "use_fp8_context_fmha": False}
    assert context_attention("FP8", "FP8", "sm90", asked).fp8


def test_an_engine_without_the_kernels_that_its_runtime_options_need_is_refused():
    with pytest.raises(Unsupported, match=r"chunked_context and runtime\.kv_cache\.reuse_blocks need paged") as caught:
        refuse_lost_features(target(), "W4A16_AWQ", "FP8", "sm90")
    assert "runtime.kv_cache.reuse_blocks: false" in caught.value.hint
    without = target(runtime={"chunked_context": False, "kv_cache": {"reuse_blocks": False}})
    refuse_lost_features(without, "W4A16_AWQ", "FP8", "sm90")
    with pytest.raises(Unsupported, match="paged_context_fmha is off"):
        refuse_lost_features(target(build={"flags": {"use_paged_context_fmha": False}}), "FP8", "FP8", "sm90")


@pytest.mark.parametrize(
    ("algorithm", "kv_algorithm"), [("W8A16", None), ("W8A8_SQ_PER_CHANNEL", None), ("FP8", "INT8")]
)
def test_integer_formats_are_refused_on_blackwell_before_the_build(algorithm, kv_algorithm):
    off = target(runtime={"chunked_context": False, "kv_cache": {"reuse_blocks": False}})
    refuse_lost_features(off, algorithm, kv_algorithm, "sm90")
    with pytest.raises(Unsupported, match="cannot be built on sm100"):
        refuse_lost_features(off, algorithm, kv_algorithm, "sm100")


def test_the_lengths_of_a_speculative_engine_are_predicted(tmp_path):
    limits = {"maximum_sequences": 256, "maximum_tokens_per_request": 1024, "maximum_batched_tokens": 2048}
    flags = {"speculative_decoding_mode": "draft_tokens_external", "max_draft_len": 63}
    of = target(build={"flags": flags}, limits=limits)
    checkpoint = read_build_checkpoint(write_trtllm_checkpoint(tmp_path / "in"), of)
    build = predict_config(of, checkpoint.config, "sm90").build
    assert build["max_seq_len"] == (1024 + 63,)
    assert build["max_num_tokens"] == (256 * 64,)


# The output


@pytest.fixture
def engine(tmp_path):
    """A right engine of two ranks, and a function that checks it."""
    of = target(2, build={"flags": {"fast_build": True, "weight_streaming": True}})
    checkpoint = read_build_checkpoint(write_trtllm_checkpoint(tmp_path / "in", tensor=2), of)
    predicted = predict_config(of, checkpoint.config, "sm90")
    made = tmp_path / "engine"
    made.mkdir()
    for rank, size in enumerate(checkpoint.rank_bytes):
        (made / f"rank{rank}.engine").write_bytes(bytes(size // 2))
        (made / f"rank{rank}_managed_weights.safetensors").write_bytes(bytes(size // 2))
    plugins = {name: legal[0] for name, legal in predicted.plugins.items()}
    document = {
        "version": "1.2.1",
        "pretrained_config": json.loads((checkpoint.directory / "config.json").read_text()),
        "build_config": {**{name: legal[0] for name, legal in predicted.build.items()}, "plugin_config": plugins},
    }
    (made / "config.json").write_text(json.dumps(document))
    return made, document, lambda: check_engine(made, of, checkpoint, predicted)


def test_a_right_engine_passes_without_a_warning(engine, caplog):
    engine[2]()
    assert not caplog.records


def _with(document, path, value):
    """The document with one value replaced, by its path; a value of None removes the key."""
    changed = json.loads(json.dumps(document))
    *parents, last = path.split(".")
    part = changed
    for name in parents:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("version", "1.2.0", "built by TensorRT-LLM 1.2.0, the target has 1.2.1"),
        ("version", None, "does not have exactly"),
        ("gpu", "H100", "does not have exactly"),
        ("pretrained_config.mapping.tp_size", 1, "tp_size is 1, the checkpoint's is 2"),
        ("pretrained_config.architecture", "GPTForCausalLM", "architecture is GPTForCausalLM"),
        ("pretrained_config.quantization.kv_cache_quant_algo", None, "kv_cache_quant_algo is None"),
        ("build_config.max_batch_size", 47, "build_config.max_batch_size is 47, it should be 48"),
        ("build_config.max_seq_len", 4096, "build_config.max_seq_len is 4096, it should be 8192"),
        ("build_config.max_num_tokens", 1, "build_config.max_num_tokens is 1"),
        ("build_config.max_beam_width", 2, "build_config.max_beam_width is 2"),
        ("build_config.kv_cache_type", "CONTINUOUS", "kv_cache_type is 'CONTINUOUS'"),
        ("build_config.weight_streaming", 1, "weight_streaming is 1, it should be True"),
        ("build_config.plugin_config.tokens_per_block", 64, "plugin_config.tokens_per_block is 64, it should be 32"),
        ("build_config.plugin_config.use_paged_context_fmha", False, "use_paged_context_fmha is False"),
        ("build_config.plugin_config.manage_weights", False, "manage_weights is False"),
        ("build_config.plugin_config.gemm_plugin", "float16", "gemm_plugin is 'float16', it should be 'auto'"),
        ("build_config.plugin_config.gemm_plugin", None, "plugin_config has no gemm_plugin"),
    ],
)
def test_an_engine_that_says_something_else_is_refused(engine, path, value, problem):
    made, document, check = engine
    (made / "config.json").write_text(json.dumps(_with(document, path, value)))
    with pytest.raises(IntegrityError, match=problem):
        check()


def test_auto_may_be_recorded_as_the_checkpoints_type(engine):
    made, document, check = engine
    changed = _with(document, "build_config.plugin_config.gpt_attention_plugin", "bfloat16")
    (made / "config.json").write_text(json.dumps(changed))
    check()


@pytest.mark.parametrize(
    ("damage", "file", "problem"),
    [
        (_remove, "config.json", "config.json cannot be read"),
        (_cut, "config.json", "config.json cannot be read"),
        (_remove, "rank1.engine", "rank1.engine is missing"),
        (_empty, "rank1.engine", "rank1.engine is empty"),
    ],
)
def test_a_damaged_engine_is_refused(engine, damage, file, problem):
    damage(engine[0] / file)
    with pytest.raises(IntegrityError, match=problem):
        engine[2]()


def test_an_engine_of_more_ranks_is_refused(engine):
    (engine[0] / "rank2.engine").write_bytes(b"1")
    with pytest.raises(IntegrityError, match=r"rank2\.engine is there, of 2 ranks"):
        engine[2]()


@pytest.mark.parametrize(("share", "refused"), [(0.25, True), (0.5, False), (2.0, False)])
def test_a_strange_size_is_refused_or_warned_of(engine, caplog, share, refused):
    made, _, check = engine
    whole = 2 * (made / "rank1.engine").stat().st_size
    (made / "rank1_managed_weights.safetensors").unlink()
    (made / "rank1.engine").write_bytes(bytes(int(whole * share)))
    if refused:
        with pytest.raises(IntegrityError, match="weights are missing"):
            check()
    else:
        check()
        assert "size is unusual" in caplog.text


# Its lines, its timing cache


def test_progress_is_read_from_the_tools_lines():
    progress = BuildProgress(2)
    for line in (
        "[08/27/2025-08:22:28] [TRT-LLM] [W] Invalid timing cache, using freshly created one",
        "[08/27/2025-08:22:30] [TRT-LLM] [I] Build phase peak memory: 6978.95 MB, children: 12049.21 MB",
        "[08/27/2025-08:22:31] [TRT-LLM] [I] Serializing engine to /e/rank1.engine...",
        "[08/27/2025-08:22:33] [TRT-LLM] [I] Serializing engine to /e/rank0.engine...",
        "[08/27/2025-08:22:33] [TRT-LLM] [I] Total time of building all engines: 01:02:03",
    ):
        progress(line)
    assert progress.ranks_done == [1, 0]
    assert progress.peak_host_megabytes == pytest.approx(19028.16)
    assert progress.build_seconds == 3723
    assert not progress.cache_is_damaged


@pytest.mark.parametrize(
    ("line", "blames"),
    [
        ("[TRT] [E] Error Code 1: Serialization (Magic tag does not match)", True),
        ("[TRT] [E] 4: The timing cache will not be used!", True),
        ("[TRT-LLM] [W] Invalid timing cache, using freshly created one", False),
        ("[TRT-LLM] [I] Timing cache serialized to model.cache", False),
        ("[TRT] [I] Global timing cache in use. Profiling results in this builder pass will be stored.", False),
    ],
)
def test_a_line_that_blames_the_timing_cache_is_told_from_others(line, blames):
    assert blames_timing_cache(line) == blames


def test_each_gpu_and_version_has_a_timing_cache_of_its_own(tmp_path):
    versions = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}
    caches = {
        TimingCache.of(tmp_path, **{"gpu": "NVIDIA H100", **versions, **change}).path
        for change in ({}, {"gpu": "NVIDIA H200"}, {"tensorrt_llm": "1.2.0"}, {"tensorrt": "10.13.3.9"})
    }
    assert len(caches) == 4


def test_a_timing_cache_is_replaced_whole_and_never_by_nothing(tmp_path):
    cache = TimingCache.of(tmp_path / "caches", gpu="g", tensorrt_llm="1", tensorrt="1")
    assert not cache.is_there
    for text in ("first", "second", ""):
        (tmp_path / "new").write_text(text)
        cache.keep(tmp_path / "new")
    cache.keep(tmp_path / "not-there")
    assert cache.path.read_text() == "second"
    assert list(cache.path.parent.iterdir()) == [cache.path]


# The double


def _double(*arguments):
    environment = {**os.environ, "PATH": f"{DOUBLES}{os.pathsep}{os.environ['PATH']}", "TRTLLM_DOUBLE_GPUS": "[]"}
    program = [sys.executable, str(DOUBLES / "trtllm-build"), *arguments]
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("arguments", [("--tp_size", "2"), ("--max_output_len", "8"), ("--max_batch", "8")])
def test_the_double_does_not_know_removed_and_short_flags(arguments):
    code, text = _double(*arguments)
    assert code == 2
    assert f"trtllm-build: error: unrecognized arguments: {' '.join(arguments)}" in text
    assert "another version" in classify_failure("trtllm-build", code, text.splitlines()).message


def test_the_double_refuses_values_that_the_table_does_not_have():
    code, text = _double("--gpt_attention_plugin", "fp8")
    assert code == 2
    assert "another version" in classify_failure("trtllm-build", code, text.splitlines()).message


def test_the_double_does_nothing_without_a_gpu():
    code, text = _double("--checkpoint_dir", "x")
    assert code == 1
    assert "NVIDIA driver" in classify_failure("trtllm-build", code, text.splitlines()).message

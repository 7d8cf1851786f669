"""The command line of trtllm-build, what it reads, and what it must have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from judging import gpu_target

from llm_pipeline.adapters.tensorrt_llm.trtllm_build import command_problems, render_build_command
from llm_pipeline.base.errors import ConfigError


def target(**changes):
    limits = {"maximum_sequences": 48, "maximum_tokens_per_request": 8192, "maximum_batched_tokens": 8192}
    return gpu_target(engine="tensorrt_llm_engine", **{"limits": limits, **changes})


def command(of):
    return " ".join(render_build_command(of, Path("/in"), Path("/scratch/engine")))


def test_the_command_of_a_plain_target():
    assert command(target()) == (
        "trtllm-build --checkpoint_dir /in --output_dir /scratch/engine --output_timing_cache /scratch/timing.cache "
        "--max_batch_size 48 --max_seq_len 8192 --max_input_len 8191 --max_num_tokens 8192 --kv_cache_type paged "
        "--remove_input_padding enable --max_beam_width 1 --tokens_per_block 32 --use_paged_context_fmha enable "
        "--use_fp8_context_fmha enable --gpt_attention_plugin auto --gemm_plugin auto --workers 1"
    )


def test_the_command_of_a_target_with_options():
    options = target(
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
            }
        }
    )
    assert command(options).endswith(
        "--max_beam_width 1 --tokens_per_block 32 --use_paged_context_fmha enable --use_fp8_context_fmha disable "
        "--gpt_attention_plugin bfloat16 --gemm_plugin auto --workers 2 --reduce_fusion enable --user_buffer enable "
        "--fast_build --lora_plugin auto --lora_target_modules attn_q attn_v --max_lora_rank 16"
    )


def test_a_step_takes_no_more_tokens_than_all_sequences_have():
    limits = {"maximum_sequences": 2, "maximum_tokens_per_request": 1024, "maximum_batched_tokens": 8192}
    assert "--max_num_tokens 2048 " in command(target(limits=limits))


def test_one_error_names_all_problems():
    flags = {"--tp_size": 2, "max_batch_size": 3}
    with pytest.raises(ConfigError, match=r"without dashes.*--max_batch_size is set by the target"):
        command(target(build={"flags": flags}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"build": {"flags": {"--fast_build": True}}}, "'--fast_build' is no name of a flag"),
        ({"build": {"flags": {"moe_plugin": "--tp"}}}, "--moe_plugin takes a word"),
        ({"build": {"flags": {"model_cls_file": "/x.py"}}}, "--model_cls_file is set by the target"),
        (
            {"runtime": {"chunked_context": False}, "limits": {"maximum_batched_tokens": 1024}},
            "prompts of more than 1024 tokens",
        ),
    ],
)
def test_options_that_make_no_engine_are_refused(changes, problem):
    (found,) = command_problems(target(**changes))
    assert problem in found

"""The in-flight batcher set's configurations, against golden files and against the table of names.

After a change that is meant, write the golden files again: set UPDATE_GOLDEN=1 for this test file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tritonclient")

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as messages

from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.serving_options import ServingOptions
from llm_pipeline.config.target import Target
from llm_pipeline.config.triton_names import TRITON_NAMES, TritonName
from llm_pipeline.serving.triton_config.inflight_batcher import (
    apply_queue,
    bls_config,
    config_text,
    engine_model_config,
    ensemble_config,
    postprocessing_config,
    preprocessing_config,
    write_config,
)
from llm_pipeline.serving.triton_config.recorded import MODEL_NAMES, recorded_model

GOLDEN = Path(__file__).parent / "golden"
QUEUE = {
    "queue_delay_microseconds": 100,
    "preferred_batch_sizes": [16, 32],
    "queue": {
        "timeout_action": "reject",
        "timeout_microseconds": 30_000_000,
        "allow_timeout_override": True,
        "maximum_queued": 256,
    },
    "priority_levels": 2,
    "default_priority_level": 2,
    "priority_queues": {2: {"timeout_action": "delay", "timeout_microseconds": 5_000_000, "maximum_queued": 64}},
}


def target(**options: Any) -> Target:
    return Target.model_validate(
        {"name": "h100", "accelerator": "H100-SXM5-80GB", "engine": "tensorrt_llm_engine", **options}
    )


def engine_config(logits_type: Any = "float32", **options: Any):
    return engine_model_config(
        target(**options), engine_directory="/engine", tokenizer_directory="/tokenizer", logits_type=logits_type
    )


def all_configs(of: Target) -> dict[str, Any]:
    return {
        "tensorrt_llm": engine_model_config(of, engine_directory="/engine", tokenizer_directory="/tokenizer"),
        "preprocessing": preprocessing_config(of, tokenizer_directory="/tokenizer"),
        "postprocessing": postprocessing_config(of, tokenizer_directory="/tokenizer"),
        "ensemble": ensemble_config(of),
        "tensorrt_llm_bls": bls_config(of),
    }


VARIANTS = {
    "tensorrt_llm_streaming": engine_config,
    "tensorrt_llm_whole_answers": lambda: engine_config(serving={"streaming": False}),
    "tensorrt_llm_queues": lambda: engine_config(serving=QUEUE),
    "tensorrt_llm_no_reuse": lambda: engine_config(
        runtime={
            "kv_cache": {
                "reuse_blocks": False,
                "free_memory_fraction": 0.5,
                "maximum_tokens": 20_000,
                "host_gib": 1.5,
                "attention_windows": [2560, 4096],
                "sink_tokens": 4,
            }
        }
    ),
    "tensorrt_llm_beams": lambda: engine_config(
        runtime={"beam_width": 4, "scheduler": "max_utilization", "chunked_context": False},
        serving={"decoding_mode": "beam_search", "gpu_device_ids": [[0, 1], [2, 3]], "exclude_input": False},
    ),
    "tensorrt_llm_lookahead": lambda: engine_config(
        "float16",
        serving={
            "decoding_mode": "lookahead",
            "lookahead": {"window": 7, "ngram": 5, "verification_set": 3},
            "extra_parameters": {"multi_block_mode": True, "num_nodes": 2},
        },
    ),
    "preprocessing": lambda: preprocessing_config(target(serving=QUEUE), tokenizer_directory="/tokenizer"),
    "postprocessing": lambda: postprocessing_config(
        target(serving={"postprocessing_instances": 2, "skip_special_tokens": False}), tokenizer_directory="/tokenizer"
    ),
    "ensemble": lambda: ensemble_config(target(), logits_type="float16"),
    "tensorrt_llm_bls": lambda: bls_config(
        target(serving={"accumulate_tokens": True, "bls_instances": 16, "draft_model_name": "draft"})
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_is_its_golden_file(variant):
    path = GOLDEN / f"{variant}.pbtxt"
    text = config_text(VARIANTS[variant]())
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_written_reads_back_as_the_same_message(tmp_path, variant):
    config = VARIANTS[variant]()
    path = write_config(config, tmp_path / config.name)
    assert path.name == "config.pbtxt"
    assert text_format.Parse(path.read_text(), messages.ModelConfig()) == config


OTHER_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "limits.maximum_sequences": ({}, "7"),
    "serving.streaming": ({}, "False"),
    "serving.batching": ({}, "V1"),
    "serving.preferred_batch_sizes": ({}, "[3, 5]"),
    "serving.queue_delay_microseconds": ({}, "9"),
    "serving.queue.timeout_action": ({}, "1"),
    "serving.queue.timeout_microseconds": ({}, "8"),
    "serving.queue.allow_timeout_override": ({}, "True"),
    "serving.queue.maximum_queued": ({}, "6"),
    "serving.priority_levels": ({"serving": {"default_priority_level": 1}}, "3"),
    "serving.default_priority_level": ({"serving": {"priority_levels": 3}}, "2"),
    "serving.preprocessing_instances": ({}, "4"),
    "serving.postprocessing_instances": ({}, "4"),
    "serving.bls_instances": ({}, "4"),
    "serving.gpu_device_ids": ({}, "0,1;2,3"),
    "runtime.beam_width": ({}, "4"),
    "runtime.scheduler": ({}, "max_utilization"),
    "runtime.chunked_context": ({}, "false"),
    "runtime.kv_cache.free_memory_fraction": ({}, "0.25"),
    "runtime.kv_cache.maximum_tokens": ({}, "2560"),
    "runtime.kv_cache.reuse_blocks": ({}, "false"),
    "runtime.kv_cache.host_gib": ({}, str(3 * 2**29)),
    "runtime.kv_cache.attention_windows": ({}, "128,256"),
    "runtime.kv_cache.sink_tokens": ({}, "4"),
    "runtime.guided_decoding": ({"serving": {"tokenizer_info_path": "/info.json"}}, "xgrammar"),
    "serving.tokenizer_info_path": ({}, "/info.json"),
    "serving.decoding_mode": ({}, "top_k"),
    "serving.draft_model_name": ({}, "draft"),
    "serving.exclude_input": ({}, "false"),
    "serving.cancellation_check_milliseconds": ({}, "20"),
    "serving.statistics_milliseconds": ({}, "30"),
    "serving.executor_worker_path": ({}, "/worker"),
    "serving.accumulate_tokens": ({}, "true"),
    "serving.add_special_tokens": ({}, "false"),
    "serving.skip_special_tokens": ({}, "false"),
}
"""Options that must be set besides, and the value expected at the option's place."""
GIVEN: dict[str, Any] = {
    "serving.streaming": False,
    "serving.preferred_batch_sizes": [3, 5],
    "serving.queue.timeout_action": "delay",
    "serving.queue.allow_timeout_override": True,
    "serving.gpu_device_ids": [[0, 1], [2, 3]],
    "runtime.chunked_context": False,
    "runtime.kv_cache.reuse_blocks": False,
    "runtime.kv_cache.host_gib": 1.5,
    "runtime.kv_cache.attention_windows": [128, 256],
    "serving.exclude_input": False,
    "serving.accumulate_tokens": True,
    "serving.add_special_tokens": False,
    "serving.skip_special_tokens": False,
}
"""Values of options that are not written as they are given."""
ELSEWHERE = {
    "serving.priority_queues",
    "serving.lookahead.window",
    "serving.lookahead.ngram",
    "serving.lookahead.verification_set",
    "serving.draft_tree",
}
"""Options of several values, which have golden files or tests of their own."""


def with_option(option: str) -> Target:
    besides, expected = OTHER_VALUES[option]
    document: dict[str, Any] = {key: dict(value) for key, value in besides.items()}
    *sections, last = option.split(".")
    section = document
    for name in sections:
        section = section.setdefault(name, {})
    section[last] = GIVEN.get(option, int(expected) if expected.isdecimal() else expected)
    if option == "runtime.kv_cache.free_memory_fraction":
        section[last] = float(expected)
    return target(**document)


def value_at(config: Any, name: TritonName) -> str:
    if name.parameter:
        return config.parameters[name.parameter].string_value
    value = config
    for part in name.place.split("."):
        value = getattr(value[0] if part == "count" else value, part)
    return str(list(value) if name.place.endswith("preferred_batch_size") else value)


@pytest.mark.parametrize(
    "name", [name for name in TRITON_NAMES if name.option not in ELSEWHERE], ids=lambda name: name.option
)
def test_each_option_of_the_table_stands_at_its_place_in_each_of_its_models(name):
    if name.option == "limits.maximum_sequences":
        configs = all_configs(target(limits={"maximum_sequences": 7}))
    else:
        configs = all_configs(with_option(name.option))
    assert {value_at(configs[model], name) for model in name.models} == {OTHER_VALUES[name.option][1]}


def test_the_table_names_every_option_that_is_about_triton():
    named = {name.option.split(".")[1] for name in TRITON_NAMES if name.option.startswith("serving.")}
    assert named | {"extra_parameters"} == set(ServingOptions.model_fields)


def test_every_parameter_is_one_that_its_model_is_recorded_to_read():
    serving = {"extra_parameters": {"cuda_graph_mode": True}, "tokenizer_info_path": "/info.json"}
    for name, config in all_configs(target(serving=serving)).items():
        assert set(config.parameters) <= {parameter.key for parameter in recorded_model(name).parameters}


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_required_parameters_and_all_recorded_tensors_are_written(name):
    config, recorded = all_configs(target())[name], recorded_model(name)
    assert {parameter.key for parameter in recorded.parameters if parameter.required} <= set(config.parameters)
    assert [tensor.name for tensor in config.input] == [tensor.name for tensor in recorded.inputs]
    assert [tensor.name for tensor in config.output] == [tensor.name for tensor in recorded.outputs]


def test_options_that_are_not_set_are_left_out():
    parameters = engine_config().parameters
    unset = ("max_tokens_in_paged_kv_cache", "kv_cache_host_memory_bytes", "decoding_mode", "gpu_device_ids",
             "guided_decoding_backend", "lookahead_window_size", "medusa_choices", "eagle_choices")  # fmt: skip
    assert not set(unset) & set(parameters)


def test_the_tensors_of_the_logits_have_the_engines_type_in_all_models():
    configs = (engine_config("float16"), ensemble_config(target(), logits_type="float16"),
               bls_config(target(), logits_type="float16"))  # fmt: skip
    types = {tensor.data_type for config in configs for tensor in config.output if tensor.name.endswith("_logits")}
    assert types == {messages.TYPE_FP16}


@pytest.mark.parametrize(("mode", "other"), [("medusa", "eagle"), ("eagle", "medusa")])
def test_a_draft_tree_is_a_parameter_of_its_decoding_mode_only(mode, other):
    parameters = engine_config(serving={"decoding_mode": mode, "draft_tree": [[0], [0, 1], [1]]}).parameters
    assert parameters[f"{mode}_choices"].string_value == "{0},{0,1},{1}"
    assert f"{other}_choices" not in parameters


def test_a_queue_fits_any_configuration():
    config = messages.ModelConfig(name="other")
    serving = ServingOptions.model_validate({"priority_levels": 1, "default_priority_level": 1})
    apply_queue(config, serving, 4)
    assert (config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)) == (4, [4])
    with pytest.raises(ConfigError, match=r"\[8\] requests exceed the largest batch, 4"):
        apply_queue(config, ServingOptions(preferred_batch_sizes=(2, 8)), 4)


@pytest.mark.parametrize(
    ("serving", "problem"),
    [
        ({"priority_levels": 2}, "default_priority_level must be 1 to 2"),
        ({"priority_levels": 2, "default_priority_level": 3}, "default_priority_level must be 1 to 2"),
        ({"default_priority_level": 1}, "needs priority_levels"),
        (
            {"priority_levels": 1, "default_priority_level": 1, "priority_queues": {2: {}, 3: {}}},
            r"levels \[2, 3\] outside",
        ),
        ({"decoding_mode": "lookahead"}, "need each other"),
        ({"lookahead": {"window": 1, "ngram": 1, "verification_set": 1}}, "need each other"),
        ({"draft_tree": [[0]]}, "draft_tree needs decoding_mode"),
        ({"preferred_batch_sizes": [0]}, r"preferred_batch_sizes\.0\s+Input should be greater"),
        ({"gpu_device_ids": [[]]}, "at least 1 item"),
        ({"gpu_device_ids": [[-1]]}, "greater than or equal to 0"),
        ({"gpu_device_ids": [[0, 1], [1, 2]]}, "names a GPU twice"),
    ],
)
def test_options_that_do_not_fit_together_are_refused_when_read(serving, problem):
    with pytest.raises(ValueError, match=problem):
        ServingOptions.model_validate(serving)


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        ({"serving": {"extra_parameters": {"scheduler_policy": "x"}}}, ConfigError, "no parameter 'scheduler_policy'"),
        ({"serving": {"extra_parameters": {"max_beam_width": 2}}}, ConfigError, "set by runtime.beam_width"),
        ({"serving": {"extra_parameters": {"gpt_model_path": "/e"}}}, ConfigError, "gpt_model_path is set by"),
        ({"serving": {"extra_parameters": {"num_nodes": "two"}}}, ConfigError, "num_nodes is 'two'"),
        ({"serving": {"extra_parameters": {"gpu_weights_percent": 1.5}}}, ConfigError, "gpu_weights_percent is '1.5'"),
        ({"runtime": {"speculative": {"method": "ngram"}}}, Unsupported, "ngram needs the LLM API"),
        (
            {"runtime": {"speculative": {"method": "eagle", "draft_model": "/d"}}},
            Unsupported,
            "eagle needs the LLM API",
        ),
        (
            {"runtime": {"speculative": {"method": "draft_model", "draft_model": "/draft"}}},
            ConfigError,
            "drafts from another model",
        ),
        ({"runtime": {"guided_decoding": "llguidance"}}, Unsupported, "xgrammar only"),
        ({"runtime": {"guided_decoding": "xgrammar"}}, ConfigError, "tokenizer as xgrammar's JSON"),
    ],
)
def test_what_the_engines_runtime_does_not_have_is_refused(options, kind, problem):
    with pytest.raises(kind, match=problem):
        engine_config(**options)

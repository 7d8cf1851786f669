from __future__ import annotations

import re
from typing import Any

import pytest
from judging import TRITON_1_2_1, WITHOUT_PAGED_CONTEXT, cpu_target, gpu_target, judge, recipe, refusal

from llm_pipeline.config.quantization import WEIGHT_BITS, QuantizationRecipe
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility

TRITON_1_1_0 = "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"
KV_CACHES = ("none", "fp8", "nvfp4")
RELEASE_1_3 = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22"


def test_fp8_on_ampere_with_an_engine_is_refused_towards_int8():
    judged = refusal(gpu_target("A100-SXM4-80GB", engine="tensorrt_llm_engine"))
    assert judged.nearest == "weights: int8_smoothquant, tensorrt_llm_checkpoint: true"


def test_an_fp8_kv_cache_is_judged_with_the_weights():
    assert judge(gpu_target(), "fp8", "fp8") == Legal()
    target = gpu_target("A100-SXM4-80GB", engine="tensorrt_llm_engine", runtime=WITHOUT_PAGED_CONTEXT)
    judged = judge(target, "int4_awq", "fp8", tensorrt_llm_checkpoint=True)
    assert isinstance(judged, Legal)
    assert "fp8 KV cache on sm80 with TensorRT engines is unknown" in judged.warnings[0]


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("0.21.0", "before 1.0 are built differently"),
        ("1.3.0rc15", "the flags of its engine compiler are not known"),
        ("1.3.0rc16", "its engine compiler was removed upstream, 1.3.0rc15 is the last that has it"),
        ("1.3.0rc22", "its engine compiler was removed upstream, 1.3.0rc15 is the last that has it"),
        ("1.4.0rc1", "its engine compiler was removed upstream"),
    ],
)
def test_engines_of_other_versions_are_refused_towards_the_llm_api_or_1_2_1(version: str, why: str):
    target = gpu_target(engine="tensorrt_llm_engine", runtime_version=version, container="registry.example.com/own:1")
    judged = refusal(target)
    assert why in judged.reason
    assert judged.nearest == "engine: tensorrt_llm_llmapi, or runtime_version: 1.2.1"


def test_an_unknown_container_is_refused():
    judged = refusal(gpu_target(container="nvcr.io/nvidia/tritonserver:27.99-trtllm-python-py3"))
    assert "is not a known one" in judged.reason
    assert judged.nearest == f"container: {TRITON_1_2_1}"


@pytest.mark.parametrize(("version", "nearest"), [("1.9.0", "1.4.0rc1"), ("latest", "1.2.1"), ("0.1.0", "0.9.0")])
def test_a_version_of_a_release_that_no_table_has_is_refused_with_the_nearest_known_one(version: str, nearest: str):
    judged = refusal(gpu_target(runtime_version=version, container="registry.example.com/own:1"))
    assert judged.reason == f"TensorRT-LLM {version} is not a known version"
    assert judged.nearest == f"runtime_version: {nearest}"


@pytest.mark.parametrize(
    ("version", "taken_for"), [("1.2.7", "1.2.1"), ("1.3.0rc23", "1.3.0rc22"), ("1.3.0", "1.3.0rc29")]
)
def test_a_version_between_known_ones_is_a_warning_that_says_which_it_is_taken_for(version: str, taken_for: str):
    judged = judge(gpu_target(runtime_version=version, container="registry.example.com/own:1"), "fp8")
    assert isinstance(judged, Legal)
    assert judged.known == "unknown"
    assert judged.warnings[0] == f"TensorRT-LLM {version} is not in our tables and taken for {taken_for}"
    assert "registry.example.com/own:1 is not in our tables" in judged.warnings[1]


@pytest.mark.parametrize(
    ("version", "nearest"), [("1.3.0rc15", "1.3.0rc22"), ("1.3.0rc18", "1.3.0rc22"), ("0.21.0", "1.0.0")]
)
def test_a_version_whose_llm_args_are_not_recorded_is_refused_towards_the_next_whose_are(version: str, nearest: str):
    judged = refusal(gpu_target(runtime_version=version, container="registry.example.com/own:1"))
    assert judged.reason == f"the LLM args of TensorRT-LLM {version} are not recorded"
    changes = dict(change.split(": ", 1) for change in judged.nearest.split(", "))
    assert changes["runtime_version"] == nearest
    assert judge(gpu_target(**changes), "none") == Legal()


def test_a_mirror_of_a_known_container_is_known():
    assert judge(gpu_target(container="registry.example.com/mirror/tritonserver:26.07-trtllm-python-py3"), "fp8").legal
    judged = refusal(gpu_target(container="registry.example.com/mirror/tritonserver:25.12-trtllm-python-py3"))
    assert "holds TensorRT-LLM 1.1.0, runtime_version is 1.2.1" in judged.reason


def test_the_tag_of_nvidias_own_image_is_the_version_inside():
    newer = "nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1"
    assert judge(gpu_target(runtime_version="1.4.0rc1", container=newer), "fp8") == Legal()
    assert "holds TensorRT-LLM 1.4.0rc1" in refusal(gpu_target(container=newer)).reason


def test_a_container_may_be_pinned_by_digest():
    assert judge(gpu_target(container=f"{TRITON_1_2_1}@sha256:{'0' * 64}"), "fp8") == Legal()


@pytest.mark.parametrize("missing", ["runtime_version", "container"])
def test_gpu_targets_need_a_runtime_version_and_a_container(missing: str):
    judged = refusal(gpu_target(**{missing: None}))
    assert judged.reason == f"a GPU target needs {missing}"
    assert TRITON_1_2_1 in judged.nearest


def test_the_number_of_gpus_must_be_that_of_the_ranks():
    judged = refusal(gpu_target(accelerator_count=1, parallelism={"tensor": 2, "pipeline": 2}))
    assert judged.nearest == "accelerator_count: 4"


@pytest.mark.parametrize(
    "weights",
    [
        "none",
        "fp8",
        "fp8_per_channel_token",
        "fp8_block",
        "int8_smoothquant",
        "int8_weight_only",
        "int4_blockwise",
        "int4_awq",
        "w4a8_awq",
    ],
)
def test_the_cpu_engine_serves(weights: str):
    assert judge(cpu_target(), weights) == Legal()


@pytest.mark.parametrize("weights", ["nvfp4", "nvfp4_awq", "mxfp4"])
def test_fp4_on_a_cpu_is_refused_for_serving_and_for_quantizing(weights: str):
    judged = refusal(cpu_target(), weights)
    assert "needs CUDA to quantize" in judged.reason
    assert judged.nearest == "weights: int4_awq"


def test_an_nvfp4_kv_cache_on_a_cpu_is_refused():
    assert refusal(cpu_target(), "int8_smoothquant", "nvfp4").nearest == "kv_cache: fp8"


def test_a_quantized_kv_cache_on_the_cpu_is_a_warning():
    judged = judge(cpu_target(), "fp8", "fp8")
    assert isinstance(judged, Legal)
    assert "keeps its KV cache in 32 bit" in judged.warnings[0]


def test_a_second_quantizer_on_the_cpu_is_a_warning():
    judged = judge(cpu_target(weight_format="int4"), "fp8")
    assert isinstance(judged, Legal)
    assert "quantizes again (int4)" in judged.warnings[0]


def test_gpu_builders_do_not_run_on_a_cpu_nor_the_cpu_builder_on_a_gpu():
    assert refusal(cpu_target(engine="tensorrt_llm_llmapi")).nearest == "engine: openvino_cpu"
    assert refusal(gpu_target(engine="openvino_cpu")).nearest == "engine: tensorrt_llm_llmapi"


def test_a_gpu_engine_takes_the_artifacts_own_weights():
    assert refusal(gpu_target(weight_format="int8")).nearest == "weight_format: native"


VLLM = {"engine": "vllm", "runtime_version": "0.20.2"}


@pytest.mark.parametrize("weights", ["none", "fp8", "fp8_block", "fp8_per_channel_token"])
def test_vllm_serves_what_its_reader_of_exports_takes(weights):
    assert judge(gpu_target(**VLLM), weights) == Legal()
    two = {"accelerator_count": 2, "parallelism": {"tensor": 2}}
    assert judge(gpu_target(**VLLM, **two), weights) == Legal()


@pytest.mark.parametrize("weights", ["int4_awq", "int8_smoothquant", "nvfp4_awq"])
def test_vllm_refuses_the_other_exports_by_name(weights):
    refused = refusal(gpu_target(**VLLM), weights)
    assert refused.reason == f"vLLM does not read modelopt's {weights}"
    assert refused.nearest in ("weights: fp8", "weights: nvfp4")


def test_vllm_on_a_cpu_serves_what_is_not_quantized_and_leaves_memory_to_a_second_server():
    target = cpu_target(engine="vllm", runtime={"kv_cache": {"free_memory_fraction": 0.4}})
    assert judge(target, "none").known == "yes"
    assert "openvino_cpu" in refusal(target, "fp8").nearest
    assert refusal(cpu_target(engine="vllm"), "none").nearest == "runtime.kv_cache.free_memory_fraction: 0.4"


def test_vllm_computes_in_16_bit_what_the_gpu_cannot():
    judged = judge(gpu_target(**VLLM), "nvfp4")
    assert isinstance(judged, Legal)
    assert (judged.known, "sm90 computes no FP4" in judged.warnings[0]) == ("partial", True)


def test_vllm_has_no_pipeline_ranks_and_known_versions():
    two = {"accelerator_count": 2, "parallelism": {"pipeline": 2}}
    assert refusal(gpu_target(**VLLM, **two), "none").nearest == "parallelism.pipeline: 1"
    for version in ("0.10.0", "0.33.0", "1.2.1"):
        assert "runtime_version: 0.20" in refusal(gpu_target(**VLLM | {"runtime_version": version}), "none").nearest


B200, B300, H200, L40S, A100, RTX = (
    "B200-SXM-180GB",
    "B300-SXM-288GB",
    "H200-SXM-141GB",
    "L40S",
    "A100-SXM4-80GB",
    "RTX-PRO-6000-Blackwell-Server",
)


@pytest.mark.parametrize(
    ("weights", "legal_on", "refused_on"),
    [
        ("fp8", [L40S, H200, B200, RTX], {A100: "weights: int4_awq"}),
        ("fp8_per_channel_token", [H200], {L40S: "weights: fp8", A100: "weights: int4_awq", B200: "weights: fp8"}),
        ("fp8_block", [H200, B200], {L40S: "weights: fp8", RTX: "weights: fp8"}),
        ("int4_awq", [A100, L40S, H200], {B200: "weights: nvfp4", B300: "weights: nvfp4", RTX: "weights: nvfp4"}),
        ("w4a8_awq", [L40S, H200], {A100: "weights: int4_awq", B200: "weights: nvfp4"}),
        ("nvfp4_awq", [], {B200: "weights: nvfp4"}),  # kernels, and no reader
        ("mxfp4", [], {B200: "weights: nvfp4"}),
        ("nvfp4", [B200, B300, RTX], {A100: "weights: int4_awq", L40S: "weights: int4_awq", H200: "weights: int4_awq"}),
    ],
)
def test_each_generation_runs_what_its_tables_say_and_is_offered_the_same_bits_first(
    weights: str, legal_on: list[str], refused_on: dict[str, str]
):
    for accelerator in legal_on:
        assert judge(gpu_target(accelerator), weights) == Legal(), accelerator
    assert {accelerator: refusal(gpu_target(accelerator), weights).nearest for accelerator in refused_on} == refused_on


ON_1_3 = {"runtime_version": "1.3.0rc22", "container": RELEASE_1_3}


@pytest.mark.parametrize(
    ("weights", "target", "known", "words"),
    [
        ("int8_smoothquant", {}, "unknown", "int8_smoothquant on sm90 with TensorRT-LLM 1.x is unknown in our tables"),
        ("int4_blockwise", {}, "unknown", "the support matrix has no entry for int4_wo on sm90"),
        ("nvfp4_awq", {"accelerator": B200, **ON_1_3}, "unknown", "nvfp4_awq checkpoints (NVFP4_AWQ) read by"),
        ("nvfp4", ON_1_3, "partial", "nvfp4 on sm90 with TensorRT-LLM 1.3 and later is partial in our tables"),
    ],
)
def test_what_tables_do_not_know_or_call_partial_is_legal_with_a_warning_that_says_so(
    weights: str, target: dict[str, str], known: str, words: str
):
    judged = judge(gpu_target(**target), weights)
    assert isinstance(judged, Legal)
    assert judged.known == known
    assert words in judged.warnings[0]


def test_a_version_before_the_one_that_modelopt_names_is_a_warning():
    judged = judge(gpu_target(runtime_version="1.1.0", container=TRITON_1_1_0), "fp8")
    assert isinstance(judged, Legal)
    assert "modelopt names TensorRT-LLM 1.2.0 as the first to read its checkpoints" in judged.warnings[0]
    assert judge(gpu_target(runtime_version="1.1.0", container=TRITON_1_1_0), "none") == Legal()


def test_an_nvfp4_kv_cache_is_for_blackwell_on_1_3():
    judged = refusal(gpu_target(H200), "fp8", "nvfp4")
    assert "an nvfp4 KV cache does not run" in judged.reason
    assert judged.nearest == "kv_cache: fp8"
    assert judge(gpu_target(B200, runtime_version="1.3.0rc22", container=RELEASE_1_3), "nvfp4", "nvfp4") == Legal()
    judged = judge(gpu_target(B200), "nvfp4", "nvfp4")
    assert isinstance(judged, Legal)
    assert "an nvfp4 KV cache on sm100" in judged.warnings[0]


def test_engines_are_built_from_tensorrt_llm_checkpoints_only():
    target = gpu_target(H200, engine="tensorrt_llm_engine")
    assert refusal(target, "fp8").nearest == "tensorrt_llm_checkpoint: true"
    assert judge(target, "fp8", tensorrt_llm_checkpoint=True) == Legal()
    assert refusal(target, "none").nearest == "weights: fp8, tensorrt_llm_checkpoint: true"


def test_what_such_a_checkpoint_cannot_hold_is_refused_towards_what_it_can():
    target = gpu_target(B200, engine="tensorrt_llm_engine")
    judged = refusal(target, "nvfp4", tensorrt_llm_checkpoint=True)
    assert "cannot be exported with weights: nvfp4" in judged.reason
    assert judged.nearest == "weights: fp8"
    target = gpu_target(H200, engine="tensorrt_llm_engine")
    searched = search("int4_awq", "fp8")
    assert refusal(target, "auto", tensorrt_llm_checkpoint=True, **searched).nearest == "weights: fp8"
    nearest = refusal(target, "fp8_per_channel_token", "nvfp4").nearest
    assert nearest == "weights: fp8, kv_cache: fp8, tensorrt_llm_checkpoint: true"


def search(*formats: str) -> dict[str, Any]:
    calibration = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}
    return {"search": {"formats": formats, "effective_bits": [6.0]}, "calibration": calibration}


def test_a_search_is_legal_where_all_its_formats_are_and_mixed_checkpoints_are_read():
    assert judge(gpu_target(H200), "auto", **search("int4_awq", "fp8")) == Legal()
    assert judge(cpu_target(), "auto", **search("int4_awq", "fp8")) == Legal()


def test_a_search_with_a_format_that_does_not_run_is_refused_towards_those_that_do():
    judged = refusal(gpu_target(H200), "auto", **search("nvfp4", "fp8"))
    assert "nvfp4 does not run on sm90" in judged.reason
    assert judged.nearest == "search.formats: [fp8]"
    assert refusal(gpu_target(A100), "auto", **search("nvfp4", "fp8")).nearest == "weights: int4_awq"
    assert refusal(cpu_target(), "auto", **search("nvfp4", "int4_awq")).nearest == "search.formats: [int4_awq]"


BACKENDS = (
    {"engine": "tensorrt_llm_engine"},
    {"engine": "tensorrt_llm_llmapi"},
    {"engine": "tensorrt_llm_llmapi", "runtime_version": "1.3.0rc22", "container": RELEASE_1_3},
)


def applied(given: QuantizationRecipe, nearest: str) -> QuantizationRecipe:
    """The recipe after the advice was taken."""
    changed: dict[str, Any] = {}
    for key, value in re.findall(r"([a-z_.]+): (\[[^]]*\]|[^,]+)", nearest):
        if key == "search.formats":
            kept = tuple(value.strip("[]").split(", "))
            changed["search"] = given.search and given.search.model_copy(update={"formats": kept})
        elif key == "weights":
            changed |= {"weights": value, "search": None}
        else:
            changed[key] = True if value == "true" else value
    return given.model_copy(update=changed)


@pytest.mark.parametrize("backend", BACKENDS, ids=["engines", "1.2", "1.3"])
def test_taking_the_advice_of_a_refusal_makes_any_recipe_legal_on_any_gpu(backend: dict[str, str]):
    searched = [recipe("auto", **search(*formats)) for formats in (("nvfp4", "fp8"), ("int4_awq", "w4a8_awq"))]
    given = [
        recipe(weights, kv) for weights in WEIGHT_BITS if weights not in ("none", "auto", "ready") for kv in KV_CACHES
    ]
    for accelerator in (A100, "A10", L40S, H200, B200, RTX):
        target = gpu_target(accelerator, **backend)
        for one in (*given, *searched):
            judged = judge_compatibility(target, one, "bfloat16")
            if isinstance(judged, Refused):
                judged = judge_compatibility(target, applied(one, judged.nearest), "bfloat16")
            assert isinstance(judged, Legal), (accelerator, one, judged)


LLAMA, QWEN = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"


@pytest.mark.parametrize(
    ("model", "weights", "engine", "listed"),
    [
        (LLAMA, "fp8", "tensorrt_llm_llmapi", True),
        (LLAMA, "fp8_block", "tensorrt_llm_llmapi", False),
        (QWEN, "int4_awq", "tensorrt_llm_llmapi", True),
        ("microsoft/phi-4", "none", "tensorrt_llm_llmapi", True),
        ("microsoft/phi-4", "fp8", "tensorrt_llm_engine", False),
        ("acme/own-model", "fp8", "tensorrt_llm_llmapi", True),
    ],
)
def test_a_format_that_nvidia_lists_for_no_model_of_the_family_is_a_warning(
    model: str, weights: str, engine: str, listed: bool
):
    target = gpu_target(H200, engine=engine)
    asked = recipe(weights, tensorrt_llm_checkpoint=engine == "tensorrt_llm_engine")
    judged = judge_compatibility(target, asked, "bfloat16", model)
    assert isinstance(judged, Legal)
    assert judged.known == ("yes" if listed else "unknown")
    assert any("are in no table of NVIDIA's" in line for line in judged.warnings) is not listed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "openvino_cpu"}, "engine openvino_cpu does not run on a GPU"),
        ({"engine": "vllm", "accelerator_count": 2, "parallelism": {"pipeline": 2}}, "tensor parallelism only"),
        ({"weight_format": "int8"}, "weight_format int8 is for CPU targets"),
    ],
)
def test_what_an_engine_cannot_do_on_a_gpu_is_refused_before_it_is_built(changes: dict[str, object], reason: str):
    assert reason in refusal(gpu_target(**changes)).reason

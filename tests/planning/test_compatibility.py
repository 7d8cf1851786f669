"""What engines and GPUs take: formats that are made here or elsewhere, and the README's table of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from judging import TRITON_1_2_1, WITHOUT_PAGED_CONTEXT, cpu_target, gpu_target, judge, recipe, refusal
from published import facts_of

from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.quantization import WEIGHT_FORMATS, QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.planning.compatibility import Legal, Refused, judge_compatibility
from llm_pipeline.planning.memory import quantizes_experts
from llm_pipeline.planning.release_checks import recipe_problems

TRITON_1_1_0 = "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"
KV_CACHES = ("none", "fp8", "nvfp4")
RELEASE_1_3 = "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22"
RELEASE_1_4 = "nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1"
ON_1_3 = {"runtime_version": "1.3.0rc22", "container": RELEASE_1_3}
OWN = "registry.example.com/own:1"
MIRROR = "registry.example.com/mirror/tritonserver"
ENGINE = {"engine": "tensorrt_llm_engine"}
VLLM = {"engine": "vllm", "runtime_version": "0.20.2"}
CALIBRATION = {"sources": ["c.jsonl"], "samples": 1, "maximum_tokens": 8}

B200, B300, H200, L40S, A100, RTX = (
    "B200-SXM-180GB",
    "B300-SXM-288GB",
    "H200-SXM-141GB",
    "L40S",
    "A100-SXM4-80GB",
    "RTX-PRO-6000-Blackwell-Server",
)


def search(*formats: str) -> dict[str, Any]:
    return {"search": {"formats": formats, "effective_bits": [6.0]}, "calibration": CALIBRATION}


@pytest.mark.parametrize(
    ("target", "weights", "kv_cache", "reason", "nearest"),
    [
        (gpu_target(A100, **ENGINE), "fp8", "none", "", "weights: int8_smoothquant, tensorrt_llm_checkpoint: true"),
        (gpu_target(container="nvcr.io/nvidia/tritonserver:27.99-trtllm-python-py3"), "fp8", "none",
         "is not a known one", f"container: {TRITON_1_2_1}"),
        (gpu_target(container=f"{MIRROR}:25.12-trtllm-python-py3"), "fp8", "none",
         "holds TensorRT-LLM 1.1.0, runtime_version is 1.2.1", ""),
        (gpu_target(container=RELEASE_1_4), "fp8", "none", "holds TensorRT-LLM 1.4.0rc1", ""),
        (gpu_target(runtime_version=None), "fp8", "none", "a GPU target needs runtime_version", TRITON_1_2_1),
        (gpu_target(container=None), "fp8", "none", "a GPU target needs container", TRITON_1_2_1),
        (gpu_target(accelerator_count=1, parallelism={"tensor": 2, "pipeline": 2}), "fp8", "none", "",
         "accelerator_count: 4"),
        (gpu_target(weight_format="int8"), "fp8", "none", "weight_format int8 is for CPU targets",
         "weight_format: native"),
        (gpu_target(engine="openvino_cpu"), "fp8", "none", "engine openvino_cpu does not run on a GPU",
         "engine: tensorrt_llm_llmapi"),
        (gpu_target(H200), "fp8", "nvfp4", "an nvfp4 KV cache does not run", "kv_cache: fp8"),
        (gpu_target(H200, **ENGINE), "fp8", "none", "", "tensorrt_llm_checkpoint: true"),
        (gpu_target(H200, **ENGINE), "none", "none", "", "weights: fp8, tensorrt_llm_checkpoint: true"),
        (gpu_target(H200, **ENGINE), "fp8_per_channel_token", "nvfp4", "",
         "weights: fp8, kv_cache: fp8, tensorrt_llm_checkpoint: true"),
        (cpu_target(engine="tensorrt_llm_llmapi"), "fp8", "none", "", "engine: openvino_cpu"),
        (cpu_target(), "nvfp4", "none", "needs CUDA to quantize", "weights: int4_awq"),
        (cpu_target(), "int8_smoothquant", "nvfp4", "", "kv_cache: fp8"),
        (cpu_target(engine="vllm"), "fp8", "none", "", "openvino_cpu"),
        (cpu_target(engine="vllm"), "none", "none", "", "runtime.kv_cache.free_memory_fraction: 0.4"),
        (gpu_target(**VLLM), "int4_awq", "none", "vLLM does not read modelopt's int4_awq", "weights: nvfp4"),
        (gpu_target(**VLLM), "int8_smoothquant", "none", "does not read modelopt's int8_smoothquant", "weights: fp8"),
        (gpu_target(**VLLM), "nvfp4_awq", "none", "vLLM does not read modelopt's nvfp4_awq", "weights: nvfp4"),
        (gpu_target(**VLLM, accelerator_count=2, parallelism={"pipeline": 2}), "none", "none",
         "tensor parallelism only", "parallelism.pipeline: 1"),
        *((gpu_target(**VLLM | {"runtime_version": version}), "none", "none", "", "runtime_version: 0.20")
          for version in ("0.10.0", "0.33.0", "1.2.1")),
        *((gpu_target(**ENGINE, runtime_version=version, container=OWN), "fp8", "none",
           f"is for TensorRT-LLM 1.0 to 1.2.x, which has a compiler, not {version}",
           "engine: tensorrt_llm_llmapi, or runtime_version: 1.2.1")
          for version in ("0.21.0", "1.3.0rc15", "1.4.0rc1")),
        *((gpu_target(runtime_version=version, container=OWN), "fp8", "none",
           f"TensorRT-LLM {version} is not a known version", f"runtime_version: {nearest}")
          for version, nearest in (("1.9.0", "1.4.0rc1"), ("latest", "1.2.1"), ("0.1.0", "0.9.0"))),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_with_the_nearest_that_can(
    target: Target, weights: str, kv_cache: str, reason: str, nearest: str
):
    judged = refusal(target, weights, kv_cache)
    assert reason in judged.reason
    assert nearest in judged.nearest


@pytest.mark.parametrize(
    ("target", "weights", "kv_cache"),
    [
        (gpu_target(), "fp8", "fp8"),
        (gpu_target(container=f"{MIRROR}:26.07-trtllm-python-py3"), "fp8", "none"),
        (gpu_target(container=f"{TRITON_1_2_1}@sha256:{'0' * 64}"), "fp8", "none"),
        (gpu_target(runtime_version="1.4.0rc1", container=RELEASE_1_4), "fp8", "none"),
        (gpu_target(runtime_version="1.1.0", container=TRITON_1_1_0), "none", "none"),
        (gpu_target(B200, **ON_1_3), "nvfp4", "nvfp4"),
        *((cpu_target(), weights, "none") for weights in (
            "none", "fp8", "fp8_per_channel_token", "fp8_block", "int8_smoothquant", "int8_weight_only",
            "int4_blockwise", "int4_awq", "w4a8_awq",
        )),
        *((gpu_target(**VLLM, **split), weights, "none")
          for weights in ("none", "fp8", "fp8_block", "fp8_per_channel_token")
          for split in ({}, {"accelerator_count": 2, "parallelism": {"tensor": 2}})),
    ],
)  # fmt: skip
def test_what_is_known_to_work_is_legal_without_a_warning(target: Target, weights: str, kv_cache: str):
    assert judge(target, weights, kv_cache) == Legal()


@pytest.mark.parametrize(
    ("target", "weights", "kv_cache", "words"),
    [
        (gpu_target(), "int8_smoothquant", "none",
         "int8_smoothquant on sm90 with TensorRT-LLM 1.x is unknown in our tables"),
        (gpu_target(), "int4_blockwise", "none", "the support matrix has no entry for int4_wo on sm90"),
        (gpu_target(B200, **ON_1_3), "nvfp4_awq", "none", "nvfp4_awq checkpoints (NVFP4_AWQ) read by"),
        (gpu_target(**ON_1_3), "nvfp4", "none",
         "nvfp4 on sm90 with TensorRT-LLM 1.3 and later is partial in our tables"),
        (gpu_target(B200), "nvfp4", "nvfp4", "an nvfp4 KV cache on sm100"),
        (gpu_target(runtime_version="1.1.0", container=TRITON_1_1_0), "fp8", "none",
         "modelopt names TensorRT-LLM 1.2.0 as the first to read its checkpoints"),
        (gpu_target(container=OWN), "fp8", "none", f"{OWN} is not in our tables"),
        (gpu_target(**VLLM), "nvfp4", "none", "sm90 computes no FP4"),
        (cpu_target(engine="vllm", runtime={"kv_cache": {"free_memory_fraction": 0.4}}), "none", "none",
         "vLLM on a CPU is slow"),
        (cpu_target(), "fp8", "fp8", "keeps its KV cache in 32 bit"),
        (cpu_target(weight_format="int4"), "fp8", "none", "quantizes again (int4)"),
        *((gpu_target(runtime_version=version, container=OWN), "fp8", "none",
           f"TensorRT-LLM {version} is not in our tables and taken for {taken_for}")
          for version, taken_for in (("1.2.7", "1.2.1"), ("1.3.0rc23", "1.3.0rc22"), ("1.3.0", "1.3.0rc29"))),
    ],
)  # fmt: skip
def test_what_is_not_known_or_not_as_asked_for_is_legal_with_a_warning_that_says_so(
    target: Target, weights: str, kv_cache: str, words: str
):
    judged = judge(target, weights, kv_cache)
    assert isinstance(judged, Legal)
    assert words in judged.warnings[0]


def test_an_fp8_kv_cache_of_engines_is_judged_with_the_weights():
    target = gpu_target(A100, **ENGINE, runtime=WITHOUT_PAGED_CONTEXT)
    judged = judge(target, "int4_awq", "fp8", tensorrt_llm_checkpoint=True)
    assert isinstance(judged, Legal)
    assert "fp8 KV cache on sm80 with TensorRT engines is unknown" in judged.warnings[0]
    assert judge(gpu_target(H200, **ENGINE), "fp8", tensorrt_llm_checkpoint=True) == Legal()


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


def test_what_such_a_checkpoint_cannot_hold_is_refused_towards_what_it_can():
    judged = refusal(gpu_target(B200, **ENGINE), "nvfp4", tensorrt_llm_checkpoint=True)
    assert "cannot be exported with weights: nvfp4" in judged.reason
    assert judged.nearest == "weights: fp8"
    searched = {"tensorrt_llm_checkpoint": True, **search("int4_awq", "fp8")}
    assert refusal(gpu_target(H200, **ENGINE), "auto", **searched).nearest == "weights: fp8"


def test_a_search_is_legal_where_all_its_formats_are_and_mixed_checkpoints_are_read():
    assert judge(gpu_target(H200), "auto", **search("int4_awq", "fp8")) == Legal()
    assert judge(cpu_target(), "auto", **search("int4_awq", "fp8")) == Legal()


def test_a_search_with_a_format_that_does_not_run_is_refused_towards_those_that_do():
    judged = refusal(gpu_target(H200), "auto", **search("nvfp4", "fp8"))
    assert "nvfp4 does not run on sm90" in judged.reason
    assert judged.nearest == "search.formats: [fp8]"
    assert refusal(gpu_target(A100), "auto", **search("nvfp4", "fp8")).nearest == "weights: int4_awq"
    assert refusal(cpu_target(), "auto", **search("nvfp4", "int4_awq")).nearest == "search.formats: [int4_awq]"


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


@pytest.mark.parametrize("backend", [ENGINE, {}, ON_1_3], ids=["engines", "1.2", "1.3"])
def test_taking_the_advice_of_a_refusal_makes_any_recipe_legal_on_any_gpu(backend: dict[str, str]):
    searched = [recipe("auto", **search(*formats)) for formats in (("nvfp4", "fp8"), ("int4_awq", "w4a8_awq"))]
    given = [recipe(weights, kv) for weights in WEIGHT_FORMATS for kv in KV_CACHES]
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
    assert any("are in no table of NVIDIA's" in line for line in judged.warnings) is not listed


READY = QuantizationRecipe.model_validate({"name": "r", "source": "else/model"})
ON_CPU = cpu_target(engine="vllm", runtime={"kv_cache": {"free_memory_fraction": 0.1}})
VLLM_IMAGE = {"engine": "vllm", "runtime_version": "0.20.2", "container": "acme/vllm:1"}


def judged(target: Target, stored_format: str) -> Legal | Refused:
    return judge_compatibility(target, READY, "bfloat16", stored_format=stored_format)


@pytest.mark.parametrize(
    ("accelerator", "stored_format", "legal", "warns"),
    [
        ("H100-SXM5-80GB", "compressed-tensors W8A8", True, False),
        ("B200-SXM-180GB", "compressed-tensors W8A8", False, False),
        ("H100-SXM5-80GB", "compressed-tensors FP8_DYNAMIC", True, False),
        ("A10", "compressed-tensors FP8_DYNAMIC", True, True),
        ("H100-SXM5-80GB", "gptq 4 bit", True, False),
        ("H100-SXM5-80GB", "torchao", True, True),
        ("H100-SXM5-80GB", "exl2 4 bit", False, False),
        ("H100-SXM5-80GB", "modelopt FP8", True, False),
        ("H100-SXM5-80GB", "modelopt W4A16_AWQ", False, False),
    ],
)
def test_vllm_takes_what_its_readers_and_the_gpu_take(accelerator: str, stored_format: str, legal: bool, warns: bool):
    found = judged(gpu_target(accelerator, **VLLM_IMAGE), stored_format)
    assert (found.legal, bool(getattr(found, "warnings", ()))) == (legal, warns), found


@pytest.mark.parametrize(
    ("stored_format", "warnings"),  # that it is slow is the first
    [("compressed-tensors W8A8", 1), ("gptq 4 bit", 1), ("awq 4 bit", 2)],
)
def test_on_a_cpu_vllm_takes_what_was_run_there_and_others_with_a_warning(
    stored_format: str, warnings: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("llm_pipeline.adapters.vllm.plan.cpu_flags", lambda: {"avx2", "avx512f"})
    found = judged(ON_CPU, stored_format)
    assert isinstance(found, Legal)
    assert len(found.warnings) == warnings


def test_four_bits_are_refused_on_a_cpu_without_the_instructions_of_their_kernel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("llm_pipeline.adapters.vllm.plan.cpu_flags", lambda: {"avx2"})
    refused = judged(ON_CPU, "gptq 4 bit")
    assert isinstance(refused, Refused)
    assert refused.reason == "vLLM's kernel for gptq 4 bit needs avx512f, which this machine's processor has not"
    assert judged(ON_CPU, "compressed-tensors W8A8").legal


@pytest.mark.parametrize(
    ("stored_format", "changes", "said"),
    [
        ("compressed-tensors W8A8", {"runtime_version": "1.3.0rc22"}, "its reader takes 8 bits in channels for FP8"),
        ("gptq 4 bit", {"runtime_version": "1.3.0rc22"}, "its reader of config.json knows no gptq"),
        ("compressed-tensors FP8_DYNAMIC", {"engine": "tensorrt_llm_engine"}, "TensorRT-LLM checkpoints"),
    ],
)
def test_tensorrt_llm_refuses_with_the_reason(stored_format: str, changes: dict[str, Any], said: str):
    container = {} if "engine" in changes else {"container": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc22"}
    found = judged(gpu_target(**{**changes, **container}), stored_format)
    assert isinstance(found, Refused)
    assert said in found.reason


def test_the_cpu_engine_reads_modelopts_formats_and_no_others():
    assert judged(cpu_target(), "modelopt FP8").legal
    refused = judged(cpu_target(), "awq 4 bit")
    assert isinstance(refused, Refused)
    assert refused.nearest == "engine: vllm, or a recipe of another checkpoint"


ROOT = Path(__file__).parents[2]
MODELS = {
    "Llama-3.1, Llama-3.2, Llama-3.3": ("Llama-3.1-8B", "Llama-3.2-3B"),
    "Qwen3": ("Qwen3-8B",),
    "Qwen3 mixtures (30B-A3B, 235B-A22B)": ("Qwen3-30B-A3B", "Qwen3-235B-A22B"),
    "Qwen2.5": ("Qwen2.5-7B",),
    "Mistral-7B": ("Mistral-7B-v0.3",),
    "Mixtral": ("Mixtral-8x7B",),
    "Gemma-3": ("Gemma-3-1B",),
    "Phi-3": ("Phi-3-mini-4k",),
}
TARGETS = ("h200_vllm", "h200", "b200", "cpu")
FORMATS = {"FP8": "fp8", "INT8": "int8_smoothquant", "INT4 AWQ": "int4_awq", "W4A8 AWQ": "w4a8_awq", "NVFP4": "nvfp4"}
_ROW = re.compile(r"^\| ([^|]+) \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)


def known(model: str, target: Target) -> str:
    """The formats that modelopt makes of the model, and that the target surely serves."""
    facts = facts_of(model)
    found = []
    for name, weights in FORMATS.items():
        asked = recipe(weights)
        experts = quantizes_experts(facts, asked)
        judged = judge_compatibility(target, asked, "bfloat16", f"organisation/{model}", quantized_experts=experts)
        if isinstance(judged, Legal) and not judged.warnings and not list(recipe_problems(asked, facts)):
            found.append(name)
    return ", ".join(found)


@pytest.mark.parametrize("row", MODELS)
def test_a_row_is_what_plan_says(row: str):
    section = (ROOT / "README.md").read_text().partition("## Models and engines")[2].partition("\n## ")[0]
    rows = {found[1]: [cell.strip() for cell in found.groups()[1:]] for found in _ROW.finditer(section)}
    assert set(rows) - {"models", "---"} == set(MODELS)
    for model in MODELS[row]:
        targets = [load_yaml(ROOT / "configs/targets" / f"{name}.yaml", Target) for name in TARGETS]
        assert [known(model, target) for target in targets] == rows[row]

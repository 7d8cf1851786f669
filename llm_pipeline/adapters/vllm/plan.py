"""What `plan` says of the engine `vllm`, by what vLLM's readers take, and the GPU's own arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.catalog.tables import find_gpu, find_ready_format, read_table
from llm_pipeline.config.quantization import KvCacheFormat, WeightFormat
from llm_pipeline.planning.compatibility import (
    OTHER_CHECKPOINT,
    FormatQuestion,
    Legal,
    Refused,
    Support,
    changes,
    gpu_target_refusal,
    legal,
)
from llm_pipeline.planning.host import cpu_flags

_OLDEST, _NEWEST = (0, 20), (0, 33)
"""The engine's asynchronous interface is not stable: from the oldest that it was run with, to before the first that it
was not."""

_FORMATS: tuple[WeightFormat, ...] = ("fp8", "fp8_per_channel_token", "fp8_block", "nvfp4", "none")
_KV_FORMATS: tuple[KvCacheFormat, ...] = ("fp8", "none")
"""What vLLM's reader of modelopt's checkpoints takes: `QUANT_ALGOS` and `KV_CACHE_QUANT_ALGOS` in its
`model_executor/layers/quantization/modelopt.py`."""

_RUNTIME = "the version of vLLM, and an image that has it beside Triton, such as tritonserver's -vllm-python"
_SM_WITH_FP8, _SM_WITH_FP4 = 89, 100
_OURS = frozenset({
    "model", "tokenizer", "revision", "hf_overrides", "load_format", "trust_remote_code", "dtype", "seed",
    "tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "max_model_len", "max_num_batched_tokens",
})  # fmt: skip
"""Engine arguments that would serve another model than the one that was judged, or other limits."""

_LARGEST_SHARE_OF_A_MACHINE = 0.4
"""On a CPU vLLM refuses to start where less than its share of the memory is free, whatever it needs."""


def judge(question: FormatQuestion) -> Legal | Refused:
    """Whether vLLM serves a recipe on a target."""
    target, recipe = question.target, question.recipe
    if own := sorted(target.runtime.engine_args.keys() & _OURS):
        return Refused(
            reason=f"runtime.engine_args states {', '.join(own)}, which the release and the target's limits say",
            nearest="leave it out, and set the target's own option",
        )
    if target.accelerator == "cpu":
        return _judge_on_cpu(question)
    sm = find_gpu(target.accelerator).sm
    if refused := gpu_target_refusal(target, _RUNTIME):
        return refused
    if target.parallelism.pipeline > 1:
        return Refused(reason="engine vllm is served with tensor parallelism only", nearest="parallelism.pipeline: 1")
    if not _OLDEST <= release_numbers(target.runtime_version or "") < _NEWEST:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (_OLDEST, _NEWEST))
        return Refused(
            reason=f"engine vllm was run with vLLM from {oldest} on, before {newest}, not {target.runtime_version}",
            nearest=f"runtime_version: {oldest}",
        )
    if question.foreign_format:
        return _judge_foreign(question.foreign_format, sm)
    asked = question.asked
    unread = [name for name in asked.weights if name not in _FORMATS]
    if unread or asked.kv_cache not in _KV_FORMATS:
        what = [*unread, *([f"kv_cache {asked.kv_cache}"] if asked.kv_cache not in _KV_FORMATS else ())]
        return Refused(
            reason=f"vLLM does not read modelopt's {', '.join(what)}",
            nearest=", ".join(changes(recipe, asked, unread, _FORMATS, _KV_FORMATS)),
        )
    return legal([support for name in asked.weights for support in _kernels(sm, name)])


def _judge_on_cpu(question: FormatQuestion) -> Legal | Refused:
    slow, asked = "vLLM on a CPU is slow: it shows that a release for a GPU works, not how fast", question.asked
    if set(asked.weights) != {"none"} or asked.kv_cache != "none":
        return Refused(
            reason=f"vLLM reads none of modelopt's checkpoints on a CPU, and {question.recipe.name} is one",
            nearest="weights: none and kv_cache: none, or engine: openvino_cpu",
        )
    share = question.target.runtime.kv_cache.free_memory_fraction
    if share > _LARGEST_SHARE_OF_A_MACHINE:
        return Refused(
            reason=f"a vLLM server would take {share:.0%} of the machine's memory, and two run at once: staging beside "
            "production, and both slots in a canary",
            nearest=f"runtime.kv_cache.free_memory_fraction: {_LARGEST_SHARE_OF_A_MACHINE}",
        )
    judged = _judge_foreign(question.foreign_format, None) if question.foreign_format else Legal()
    if isinstance(judged, Refused):
        return judged
    return judged.model_copy(update={"warnings": (slow, *judged.warnings)})


def _judge_foreign(name: str, sm: str | None) -> Legal | Refused:
    """What another tool than modelopt quantized; `sm` is None on a CPU."""
    known, method = find_ready_format(name), name.partition(" ")[0]
    if known is None and method not in read_table("ready_formats")["vllm_methods"]:
        return Refused(reason=f"vLLM reads no checkpoints of {method}", nearest=OTHER_CHECKPOINT)
    if sm is None and known and known.cpu_needs and known.cpu_needs not in cpu_flags():
        return Refused(
            reason=f"vLLM's kernel for {name} needs {known.cpu_needs}, which this machine's processor has not",
            nearest=f"a machine with {known.cpu_needs}, or another checkpoint, e.g. compressed-tensors W8A8",
        )
    if known is None or (sm is None and known.cpu == "unknown"):
        where = "on a CPU" if sm is None else f"on {sm}"
        return Legal(warnings=(f"whether vLLM runs {name} {where} is in none of our tables",))
    if sm is None:
        return Legal()
    generation = int(sm.removeprefix("sm"))
    if generation >= known.vllm_below:
        return Refused(reason=f"vLLM does not run {name} on {sm}: {known.vllm_why}", nearest=OTHER_CHECKPOINT)
    if known.computed_by is None or known.computed_by[0] <= generation <= known.computed_by[1]:
        return Legal()
    unpacked = f"{sm} does not multiply {name}: vLLM keeps such weights and computes in 16 bit"
    return legal([Support("partial", unpacked)])


def _kernels(sm: str, weights: WeightFormat) -> Iterator[Support]:
    generation = int(sm.removeprefix("sm"))
    if weights.startswith("fp8") and generation < _SM_WITH_FP8:
        yield Support("partial", f"{sm} computes no FP8: vLLM keeps {weights} weights and computes in 16 bit")
    if weights.startswith("nvfp4") and generation < _SM_WITH_FP4:
        yield Support("partial", f"{sm} computes no FP4: vLLM keeps {weights} weights and computes in 16 bit")

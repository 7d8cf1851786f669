"""What the failure of a build's tool means, from its exit code and its last lines, and what to do about it."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from llm_pipeline.base.errors import PipelineError, StageCrashed, Terminal, Transient

_SHOWN_LINES = 12


class BuildFailed(Terminal):
    """The build's tool failed for a reason that trying again does not change."""


class BuildInterrupted(Transient):
    """The build's tool failed for a reason that may pass."""


@dataclass(frozen=True)
class KnownFailure:
    """A known last line of a failing tool, and what to do about it.

    Attributes:
        pattern: Looked for in the last lines.
        meaning: What it means.
        advice: What to do.
        passes: Whether trying again may help.
    """

    pattern: re.Pattern[str]
    meaning: str
    advice: str
    passes: bool = False


def classify_failure(tool: str, exit_code: int, lines: Sequence[str]) -> PipelineError:
    """The error of a tool that ended with a non-zero exit code; negative ones are signals."""
    text = "\n".join(lines)
    tail = "\n".join(lines[-_SHOWN_LINES:])
    for known in KNOWN_FAILURES:
        if known.pattern.search(text):
            family = BuildInterrupted if known.passes else BuildFailed
            return family(f"{tool}: {known.meaning}; its last lines:\n{tail}", hint=known.advice)
    if exit_code == -signal.SIGKILL:
        return BuildFailed(
            f"{tool} was killed by the kernel or an operator, most likely for host memory; its last lines:\n{tail}",
            hint="give the build more host memory, or fewer build.workers; see the kernel's log (dmesg)",
        )
    if exit_code < 0:
        return StageCrashed(f"{tool} was ended by {signal.Signals(-exit_code).name}; its last lines:\n{tail}")
    return BuildFailed(f"{tool} ended with exit code {exit_code}; its last lines:\n{tail}")


KNOWN_FAILURES: tuple[KnownFailure, ...] = (
    KnownFailure(
        re.compile(
            r"INT8/INT4 quantization is not supported on SM|SmoothQuant is not supported on SM"
            r"|(Per-channel or per-token scaling|_plugin=\S+) is not supported on SM"
        ),
        "the engine compiler does not support this format or plugin on this GPU",
        "use fp8 or nvfp4 without that plugin, or engine: tensorrt_llm_llmapi",
    ),
    KnownFailure(
        re.compile(r"trtllm-build: error: (unrecognized arguments|argument \S+ invalid)"),
        "it does not know a flag, or not that value of it",
        "correct build.flags, or compare runtime_version with the TensorRT-LLM in the target's environment",
    ),
    KnownFailure(
        re.compile(r"max_workers must be greater than 0"),
        "no GPU is visible to it",
        "start the target's environment with its GPUs, and look at CUDA_VISIBLE_DEVICES",
    ),
    KnownFailure(
        re.compile(r"Unsupported model architecture|Required but not provided tensors"),
        "the checkpoint is not one that this TensorRT-LLM can build",
        "make the checkpoint again, or use engine: tensorrt_llm_llmapi",
    ),
    KnownFailure(
        re.compile(r"TensorRT-LLM \S+ is installed, the target is for \S+"),
        "this environment holds another version of TensorRT-LLM",
        "set the target's container to one that holds its runtime_version: see llm-pipeline plan",
    ),
    KnownFailure(
        re.compile(r"No module named 'tensorrt_llm'"),
        "this environment has no TensorRT-LLM",
        "run the build in the target's own container: set target.environment",
    ),
    KnownFailure(
        re.compile(r"libcuda\.so\.1"),
        "the NVIDIA driver's library libcuda.so.1 is not visible",
        "run the build on a GPU host, and its container with GPUs (NVIDIA container toolkit)",
    ),
    KnownFailure(
        re.compile(r"CUDA driver version is insufficient|forward compatibility was attempted", re.IGNORECASE),
        "the NVIDIA driver is too old for the container's CUDA",
        "update the driver, or use an older container: see llm-pipeline plan",
    ),
    KnownFailure(
        re.compile(r"no kernel image is available for execution", re.IGNORECASE),
        "TensorRT-LLM has no kernels for this GPU",
        "build for a GPU that this version supports: see llm-pipeline plan",
    ),
    KnownFailure(
        re.compile(r"validation errors? for (TorchLlmArgs|TrtLlmArgs|LlmArgs|BaseLlmArgs)"),
        "TensorRT-LLM refuses the LLM args, although they fit the recorded schema of its version",
        "look at the named keys in its last lines, and leave them out of the target",
    ),
    KnownFailure(
        re.compile(r"is not a valid QuantAlgo"),
        "this TensorRT-LLM does not know the checkpoint's quantization",
        "quantize to another format, or use a later runtime_version: see llm-pipeline plan",
    ),
    KnownFailure(
        re.compile(r"not compatible with this version of TensorRT|Version tag does not match"),
        "the engine was made by another version of TensorRT",
        "build and load it with the same container",
    ),
    KnownFailure(
        re.compile(r"generated on an incompatible device|expecting compute \d"),
        "the engine was made for another GPU generation",
        "build it on a host with the target's GPU",
    ),
    KnownFailure(
        re.compile(r"FP8 FMHA cannot be enabled"),
        "there are no FP8 attention kernels for this GPU, or the container is too old to support it",
        "set build.fp8_context_fmha: false, or use a container that supports the GPU",
    ),
    KnownFailure(
        re.compile(r"weight shape (is )?invalid|shape of weight is invalid", re.IGNORECASE),
        "the weights do not divide by this parallelism",
        "group-wise formats need columns that divide by group size x tensor parallelism: use fewer tensor ranks",
    ),
    KnownFailure(
        re.compile(r"key '[^']+' not found|json\.exception\.out_of_range"),
        "a config file was written by another version of TensorRT-LLM",
        "make the checkpoint and the engine with the target's own version",
    ),
    KnownFailure(
        re.compile(r"CUDA out of memory|OutOfMemoryError|cudaErrorMemoryAllocation", re.IGNORECASE),
        "out of GPU memory",
        "lower limits.maximum_sequences or maximum_batched_tokens, use a smaller format, or more GPUs",
    ),
    KnownFailure(
        re.compile(r"std::bad_alloc|Cannot allocate memory|can't allocate memory|\bMemoryError\b"),
        "out of host memory",
        "give the build more host memory (about the checkpoint's size for each worker), or fewer build.workers",
    ),
    KnownFailure(
        re.compile(r"No space left on device"),
        "out of disk space",
        "free some where the stage works: work_root of the deployment, and /dev/shm of the container",
    ),
    KnownFailure(
        re.compile(r"process in the process pool was terminated abruptly"),
        "one of its workers was killed, most likely for host memory",
        "give the build more host memory (about the checkpoint's size for each worker), or fewer build.workers",
    ),
    KnownFailure(
        re.compile(r"Error Code 2: OutOfMemory"),
        "out of GPU memory while compiling",
        "stop what else uses the GPU, lower limits.maximum_batched_tokens, or split the model over more ranks",
    ),
    KnownFailure(
        re.compile(r"uncorrectable (NVLink|ECC) error", re.IGNORECASE),
        "the GPU has a hardware error",
        "try again on another host, and look at nvidia-smi -q and the kernel's log for Xid lines",
        passes=True,
    ),
    KnownFailure(
        re.compile(r"NCCL error|nccl(UnhandledCuda|System|Internal|Remote)Error", re.IGNORECASE),
        "the GPUs could not communicate with each other",
        "set NCCL_DEBUG=INFO, and give the container enough shared memory (--shm-size=8g, --ulimit memlock=-1)",
        passes=True,
    ),
)
"""More specific ones first."""

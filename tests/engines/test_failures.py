"""Texts that builds are known to end with, and what they are taken for."""

from __future__ import annotations

import signal

import pytest

from llm_pipeline.base.errors import StageCrashed
from llm_pipeline.engines.failures import BuildFailed, BuildInterrupted, classify_failure

LAST_LINES = {
    "llm_pipeline.base.errors.Unsupported: TensorRT-LLM 1.2.0 is installed, the target is for 1.2.1": "another version",
    "ModuleNotFoundError: No module named 'tensorrt_llm'": "has no TensorRT-LLM",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory": "driver's library",
    "pydantic_core.ValidationError: 1 validation error for TorchLlmArgs": "refuses the LLM args",
    "ValueError: 'NVFP4_AWQ' is not a valid QuantAlgo": "does not know the checkpoint's quantization",
    "The engine plan file is not compatible with this version of TensorRT, expecting library version 10.14.1.48 got "
    "10.13.3.9, please rebuild.": "another version of TensorRT",
    "The engine plan file is generated on an incompatible device, expecting compute 9.0 got compute 8.9, please "
    "rebuild.": "another GPU generation",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB": "out of GPU memory",
    "terminate called after throwing an instance of 'std::bad_alloc'": "out of host memory",
}
PASSING = {
    "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:3356, unhandled system error": "could not communicate",
    "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered": "hardware error",
}


@pytest.mark.parametrize(("line", "meaning"), LAST_LINES.items())
def test_a_known_text_is_a_failure_with_advice_that_a_retry_does_not_change(line, meaning):
    error = classify_failure("tool", 1, ["loading", line, "shutting down"])
    assert isinstance(error, BuildFailed)
    assert meaning in error.message
    assert line in error.message
    assert error.hint


@pytest.mark.parametrize(("line", "meaning"), PASSING.items())
def test_a_text_of_a_trouble_that_may_pass_is_tried_again(line, meaning):
    error = classify_failure("tool", 1, [line])
    assert isinstance(error, BuildInterrupted)
    assert meaning in error.message


def test_an_exit_code_without_a_known_text_shows_the_last_lines():
    error = classify_failure("tool", 3, [f"line {number}" for number in range(40)])
    assert isinstance(error, BuildFailed)
    assert "exit code 3" in error.message
    assert "line 39" in error.message
    assert "line 20" not in error.message


def test_a_killed_tool_most_likely_had_too_little_memory_and_other_signals_pass():
    assert "host memory" in classify_failure("tool", -signal.SIGKILL, []).message
    assert isinstance(classify_failure("tool", -signal.SIGTERM, []), StageCrashed)

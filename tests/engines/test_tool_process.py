"""A build's tool as a process: what it says and is given, what its end is taken for, and that nothing is left."""

from __future__ import annotations

import signal

import psutil
import pytest

from llm_pipeline.base.errors import ConfigError, StageCrashed
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.engines.tool_process import BuildFailed, BuildInterrupted, classify_failure, run_tool

STARTS_A_RANK = ["sh", "-c", "setsid sleep 600 & echo $!; wait"]  # a shell has started one long before the limit


def ended(pid: int) -> bool:
    return wait_until(lambda: not psutil.pid_exists(pid), 60)


def test_its_lines_are_kept_in_their_order_and_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    run_tool(["sh", "-c", "echo one; echo two >&2; echo; echo three"], time_limit_seconds=10)
    assert [record.getMessage() for record in caplog.records] == ["one", "two", "three"]


def test_at_the_time_limit_what_it_started_ends_with_it(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    with pytest.raises(BuildFailed, match=r"ranks was stopped after its time limit of 0\.02 min"):
        run_tool(STARTS_A_RANK, name="ranks", time_limit_seconds=1.2)
    assert ended(int(caplog.records[0].getMessage()))


def test_no_secret_is_handed_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "LLM_PIPELINE_SIGNING_PASSWORD", "AIRFLOW__CORE__FERNET_KEY"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    run_tool(["env"], time_limit_seconds=10, variables={"HF_HUB_OFFLINE": "1"})
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "hidden" in line]
    assert {"TOKENIZERS_PARALLELISM=false", "HF_HUB_OFFLINE=1"} <= set(lines)


def test_a_failure_is_told_with_its_name_and_last_lines():
    with pytest.raises(BuildFailed, match=r"false-friend ended with exit code 3.*\nbroken"):
        run_tool(["sh", "-c", "echo broken; exit 3"], name="false-friend", time_limit_seconds=10)
    with pytest.raises(ConfigError, match="cannot start no-such-tool"):
        run_tool(["no-such-tool"], time_limit_seconds=10)


def test_what_it_started_ends_with_it_also_when_it_ends_by_itself(monkeypatch, caplog):
    """A process that becomes another program has no environment at that moment."""
    caplog.set_level("INFO")
    environ, seen = psutil.Process.environ, set[int]()
    first_look_is_empty = lambda one: environ(one) if one.pid in seen else seen.add(one.pid) or {}  # noqa: E731
    monkeypatch.setattr(psutil.Process, "environ", first_look_is_empty)
    run_tool(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], time_limit_seconds=60)
    assert ended(int(caplog.records[0].getMessage()))


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

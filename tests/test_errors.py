"""Any exception becomes one of ours at the edge: its family, its exit code, and what the reader can do."""

from __future__ import annotations

import errno
import os
import subprocess
import urllib.error

import pytest

from llm_pipeline.base.errors import (
    ExitCode,
    InternalError,
    MissingPackage,
    Terminal,
    Transient,
    as_pipeline_error,
    traceback_of,
)


@pytest.mark.parametrize("name", ["EACCES", "ECONNRESET", "EIO", "EMFILE", "ENOSPC", "EROFS", "ETIMEDOUT"])
def test_an_io_error_is_transient_names_its_file_and_says_what_to_do(name: str) -> None:
    number = getattr(errno, name)
    error = as_pipeline_error(OSError(number, os.strerror(number), "/work/model.bin"))
    assert isinstance(error, Transient)
    assert error.exit_code == ExitCode.INFRASTRUCTURE
    assert error.where == "/work/model.bin"
    assert os.strerror(number) in error.message
    assert error.hint


@pytest.mark.parametrize(
    "raised",
    [
        TimeoutError("timed out"),
        ConnectionError("closed"),
        urllib.error.URLError("no route"),
        subprocess.TimeoutExpired("nvidia-smi", 10),
        MemoryError(),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_what_may_pass_by_itself_is_transient(raised: Exception) -> None:
    error = as_pipeline_error(raised, where="stage build")
    assert isinstance(error, Transient)
    assert error.where == "stage build"
    assert error.hint


@pytest.mark.parametrize(
    "raised",
    [
        ZeroDivisionError("float division by zero"),
        RecursionError("maximum recursion depth exceeded"),
        KeyError("scores"),
        OSError("no model of that name"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/work/gone"),
        ModuleNotFoundError("No module named 'nothing_of_ours'", name="nothing_of_ours"),
        ImportError("cannot import name 'x'", name="torch"),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_everything_else_is_a_fault_that_is_not_tried_again(raised: Exception) -> None:
    error = as_pipeline_error(raised, where="plan")
    assert isinstance(error, InternalError)
    assert isinstance(error, Terminal)
    assert error.exit_code == ExitCode.INFRASTRUCTURE
    assert type(raised).__name__ in error.message
    assert str(raised) in error.message
    assert "traceback" in error.hint


@pytest.mark.parametrize(
    ("module", "extra"),
    [("tritonclient.grpc", "control"), ("torch", "model"), ("boto3", "store-s3"), ("model_signing", "signing")],
)
def test_an_optional_package_that_is_missing_is_bad_input_and_the_extra_is_named(module: str, extra: str) -> None:
    error = as_pipeline_error(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert isinstance(error, MissingPackage)
    assert error.exit_code == ExitCode.BAD_INPUT
    assert module.partition(".")[0] in error.message
    assert error.hint == f"pip install 'llm-pipeline[{extra}]'"


def test_credentials_in_the_text_of_an_exception_are_in_neither_the_error_nor_its_traceback() -> None:
    with pytest.raises(RuntimeError) as caught:
        reach("https://user:hunter2@hub.example/model")
    shown, trace = str(as_pipeline_error(caught.value)), traceback_of(caught.value)
    assert "hunter2" not in shown + trace
    assert "https://***@hub.example/model" in shown
    assert trace.startswith("Traceback (most recent call last)")


def reach(address: str) -> None:
    raise RuntimeError(f"cannot reach {address}")

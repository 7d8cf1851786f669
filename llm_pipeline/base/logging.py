"""Structured logs: one JSON line a fact, from a stage's process to whoever started it.

A stage logs through `get_logger`; fields are keyword arguments. `write_json_lines` is set up once in a stage's
process; a `LogRelay` gives each line to a standard logger at its own level in the parent (the Airflow task, or the
command line).

A record is one line, whoever wrote the text in it: line ends are escaped, and credentials are left out. Only `Lines`
and exceptions keep their line ends; each line after the first is then marked, so that none passes for a record.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

from llm_pipeline.base.redaction import without_credentials
from llm_pipeline.base.untrusted_text import one_line, quoted, several_lines

OURS = ("llm_pipeline", "llm_pipeline_airflow", "__main__")
"""Loggers of this package; the last one is that of a module run by `python -m`."""

THIRD_PARTIES = (
    "aiohttp", "boto3", "botocore", "filelock", "fsspec", "httpcore", "httpcore2", "httpx", "httpx2",
    "huggingface_hub", "kubernetes", "requests", "s3transfer", "smtplib", "urllib3", "websocket",
)  # fmt: skip
"""Loggers of libraries that write the addresses they ask, presigned ones too, below the level WARNING."""

_named: set[str] = set()
"""Modules that asked for a logger of ours: other packages' stages log as ours do."""
_writing = threading.Event()
"""Set once this package decides what this process logs; Airflow decides it in its own processes."""

PROGRESS = "llm_pipeline.base.progress"
"""The logger of lines that say how far long work is."""

FAILURES = "llm_pipeline.release.failures"
"""The logger of the line that says why a stage failed: silent where the error itself is shown, too."""

_FIELDS = "llm_pipeline_fields"
_MARK = "mark"
_VERBOSITY = {"HF_HUB_VERBOSITY": "warning", "HF_DEBUG": ""}


class Lines(str):
    """Text whose line ends are meant: a table, a report, a traceback."""

    __slots__ = ()


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A standard logger whose calls take fields: `log.info("published", digest=..., bytes=...)`."""

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Move the fields of a call to where the formatters look for them."""
        fields = {
            key: _field(kwargs.pop(key)) for key in list(kwargs) if key not in ("exc_info", "stack_info", "stacklevel")
        }
        return msg, {**kwargs, "extra": {_FIELDS: fields}}


def get_logger(name: str) -> FieldLogger:
    """A field logger by the name of its module; where this package writes the log, its level is INFO."""
    logger = logging.getLogger(name)
    _named.add(name)
    if _writing.is_set() and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    return FieldLogger(logger)


class JsonLineFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, event, fields.

    Args:
        mark: Written into each line: by it a `LogRelay` tells the process's own lines from what others print there.
    """

    def __init__(self, mark: str = "") -> None:
        super().__init__()
        self._mark = mark

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, without a line break."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": _message(record),
        }
        if self._mark:
            line[_MARK] = self._mark
        if fields := getattr(record, _FIELDS, None):
            line["fields"] = fields
        if record.exc_info:
            line["traceback"] = without_credentials(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


class ReadableFormatter(logging.Formatter):
    """Formats a record for people: the event, then `key=value` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it if there is one."""
        text = _message(record) + readable_fields(getattr(record, _FIELDS, None))
        if not record.exc_info:
            return text
        return f"{text}\n{_below(self.formatException(record.exc_info))}"


def readable_fields(fields: dict[str, Any] | None) -> str:
    """Fields as `  key=value key=value`; empty without fields."""
    if not fields:
        return ""
    return "  " + " ".join(f"{key}={_short(value)}" for key, value in fields.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_json_lines(stream: TextIO = sys.stderr) -> None:
    """Send the log records of this process to `stream` as JSON lines: ours, and warnings of others."""
    _write_with(JsonLineFormatter(secrets.token_hex(8)), logging.StreamHandler(stream))
    os.environ.update(_VERBOSITY)  # read when the library is imported; it would write to a handler of its own
    logging.captureWarnings(capture=True)
    logging.getLogger("py.warnings").addFilter(_demote)


def write_readable_lines(handler: logging.Handler | None = None) -> None:
    """Send the log records of this process to people, by default on stderr: ours, and warnings of others."""
    _write_with(ReadableFormatter(), handler or logging.StreamHandler(sys.stderr))


def _write_with(formatter: logging.Formatter, handler: logging.Handler) -> None:
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (*OURS, *_named):
        logging.getLogger(name).setLevel(logging.INFO)
    _writing.set()
    quiet_third_parties()
    clean_records()


def quiet_third_parties() -> None:
    """Let libraries that talk to servers log warnings and errors only, whatever the root logger's level is.

    One that is imported later may set its own level: call it again then.
    """
    for name in THIRD_PARTIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def clean_records(names: tuple[str, ...] = ("",), *, with_traceback: bool = False) -> None:
    """Clean the text of each record of this process as it is made, for whichever handler and formatter shows it.

    Args:
        names: Loggers whose records, and their children's, are cleaned; by default all.
        with_traceback: Make a traceback that needed it part of the text, for formatters that render it themselves.
    """
    current = logging.getLogRecordFactory()
    before = current.before if isinstance(current, _CleanRecords) else current
    logging.setLogRecordFactory(_CleanRecords(before, names, with_traceback=with_traceback))


class _CleanRecords:
    """A factory of log records, before which `before` was the one."""

    def __init__(
        self, before: Callable[..., logging.LogRecord], names: tuple[str, ...], *, with_traceback: bool
    ) -> None:
        self.before = before
        self._names = names
        self._with_traceback = with_traceback

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.before(*args, **kwargs)
        if not any(name == "" or f"{record.name}.".startswith(f"{name}.") for name in self._names):
            return record
        try:
            record.msg, record.args = _message(record), ()
        except Exception:  # noqa: BLE001 - a mistake of the call; the handler meets and reports it, too
            return record
        if record.exc_info:
            traceback = logging.Formatter().formatException(record.exc_info)
            record.exc_text = _below(traceback)
            if self._with_traceback and several_lines(without_credentials(traceback)) != traceback:
                record.msg, record.exc_info = Lines(f"{record.msg}\n{record.exc_text}"), None
        return record


def _message(record: logging.LogRecord) -> str:
    """The record's message, on one line unless it holds `Lines` or an exception."""
    args = record.args if isinstance(record.args, tuple) else ()
    if any(isinstance(part, (Lines, BaseException)) for part in (record.msg, *args)):
        return Lines(_several(record.getMessage()))
    return _single(record.getMessage())


def _field(value: Any) -> Any:
    """A field's value as JSON can hold it, its texts cleaned."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        return [_field(one) for one in value]
    if isinstance(value, dict):
        return {_single(str(key)): _field(one) for key, one in value.items()}
    return _single(str(value))


def _single(text: str) -> str:
    return one_line(without_credentials(text.rstrip()))


def _several(text: str) -> str:
    return quoted(without_credentials(text.rstrip()))


def _below(text: str) -> str:
    """Lines that stand below a record's first one."""
    return _several(f"\n{text}")[1:]


def _demote(record: logging.LogRecord) -> bool:
    """Python warnings of the tools below us are for the log's reader, not for the operator's attention."""
    record.levelno, record.levelname = logging.INFO, "INFO"
    return True


class LogRelay:
    """Gives what one process writes to a standard logger, line by line.

    Lines of `write_json_lines` are logged at their own level. Everything else is output of a tool or a library, also
    where it has the form of such a line: it is logged at INFO, behind a `|`.

    Args:
        logger: Gets the lines.
        shown: Gets lines of progress and tables in its place; None for the same logger.
    """

    def __init__(self, logger: logging.Logger, shown: logging.Logger | None = None) -> None:
        self._logger, self._shown = logger, shown or logger
        self._mark: str | None = None

    def relay(self, line: str) -> None:
        """Log one line that the process wrote."""
        text = line.rstrip()
        if not text:
            return
        try:
            logger, level, message = self._own(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._logger.info("%s", f"| {_single(text)}")
        else:
            logger.log(level, "%s", Lines(_several(message)))

    def _own(self, record: Any) -> tuple[logging.Logger, int, str]:
        """Whose a line of the process is, its level and message; the first one says how the others are marked.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: It is none.
        """
        mark, level = record[_MARK], logging.getLevelNamesMapping()[record["level"]]
        message = record["event"] + readable_fields(record.get("fields"))
        traceback = f"\n{record['traceback']}" if "traceback" in record else ""
        if self._mark is None and isinstance(mark, str):
            self._mark = mark
        if mark != self._mark:
            raise ValueError("not a line of this process")
        if record["logger"] == FAILURES:
            return logging.getLogger(FAILURES), level, message
        shown = record["logger"] == PROGRESS or "\n" in record["event"]
        return self._shown if shown else self._logger, level, message + traceback

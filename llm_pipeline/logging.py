"""Structured logs: one JSON line a fact, from a stage's process to whoever started it.

A stage logs through `get_logger`; fields are keyword arguments. `write_json_lines` is set up once in a
stage's process; `relay` gives each line to a standard logger at its own level in the parent (the Airflow
task, or the command line).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import MutableMapping
from typing import Any, TextIO

from llm_pipeline.errors import without_credentials

_FIELDS = "llm_pipeline_fields"


class FieldLogger(logging.LoggerAdapter[logging.Logger]):
    """A standard logger whose calls take fields: `log.info("published", digest=..., bytes=...)`."""

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Move the fields of a call to where the formatters look for them."""
        fields = {key: kwargs.pop(key) for key in list(kwargs) if key not in ("exc_info", "stack_info", "stacklevel")}
        return msg, {**kwargs, "extra": {_FIELDS: fields}}


def get_logger(name: str) -> FieldLogger:
    """A field logger by the name of its module."""
    return FieldLogger(logging.getLogger(name))


class JsonLineFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, event, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object, without a line break."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        if fields := getattr(record, _FIELDS, None):
            line["fields"] = fields
        if record.exc_info:
            line["traceback"] = without_credentials(self.formatException(record.exc_info))
        return json.dumps(line, default=str, ensure_ascii=False)


class ReadableFormatter(logging.Formatter):
    """Formats a record for people: the event, then `key=value` fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback below it if there is one."""
        text = record.getMessage() + readable_fields(getattr(record, _FIELDS, None))
        if not record.exc_info:
            return text
        return f"{text}\n{without_credentials(self.formatException(record.exc_info))}"


def readable_fields(fields: dict[str, Any] | None) -> str:
    """Fields as `  key=value key=value`; empty without fields."""
    if not fields:
        return ""
    return "  " + " ".join(f"{key}={_short(value)}" for key, value in fields.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_json_lines(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Send every log record of this process to `stream` as JSON lines."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(capture=True)
    logging.getLogger("py.warnings").addFilter(_demote)


def _demote(record: logging.LogRecord) -> bool:
    """Python warnings of the tools below us are for the log's reader, not for the operator's attention."""
    record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def relay(line: str, logger: logging.Logger) -> None:
    """Log one line of a stage's process at its own level; a line that is not ours is logged at INFO as it is."""
    text = line.rstrip("\n")
    if not text:
        return
    try:
        record = json.loads(text)
        level = logging.getLevelNamesMapping()[record["level"]]
        message = record["event"] + readable_fields(record.get("fields"))
    except (ValueError, KeyError, TypeError):
        logger.info("%s", text)
        return
    if "traceback" in record:
        message = f"{message}\n{record['traceback']}"
    logger.log(level, "%s", message)

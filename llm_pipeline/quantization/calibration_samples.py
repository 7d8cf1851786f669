"""The texts and chats that a calibration set is drawn from, as their files hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_pipeline.base.digest import canonical_json
from llm_pipeline.base.errors import ConfigError, unless_io
from llm_pipeline.catalog.named_sets import named_set
from llm_pipeline.config.quantization import NAMED_SET, Calibration, CalibrationSource

Message = Mapping[str, Any]

_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Sample:
    """One text, or one chat.

    Attributes:
        content: The text, or the chat's messages as canonical JSON.
        where: File and line that it stands in.
    """

    content: str
    where: str

    @property
    def messages(self) -> list[Message]:
        """The messages of a chat."""
        messages: list[Message] = json.loads(self.content)
        return messages


def read_sources(path: Path, calibration: Calibration) -> tuple[tuple[Sample, ...], ...]:
    """The samples of every source, in the order of the sources.

    Args:
        path: Directory of a calibration set as the resolve stage publishes it; or a file, for a single source.
        calibration: What was asked for.

    Raises:
        ConfigError: A file is missing or unreadable, or a line of it is no sample.
    """
    files = [path] if path.is_file() else _in_order(path)
    if len(files) != len(calibration.sources):
        found = f"{len(files)} jsonl or parquet files for {len(calibration.sources)} sources"
        raise ConfigError(found, where=str(path), hint="resolve the release again")
    return tuple(
        read_source(file, source, chat=calibration.chat_template)
        for file, source in zip(files, calibration.sources, strict=True)
    )


def _in_order(directory: Path) -> list[Path]:
    """Several files are numbered: `0-first.jsonl`, `1-second.jsonl`."""
    found = [path for path in directory.glob("*") if path.suffix in _SUFFIXES]
    return found if len(found) == 1 else sorted(found, key=_number)


def _number(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isdecimal() else 0


def read_source(path: Path, source: CalibrationSource, *, chat: bool) -> tuple[Sample, ...]:
    """All samples of one source.

    A line that is no sample is an error in a file of one's own; in a named set, which nobody can correct, rows without
    text are passed over.

    Raises:
        ConfigError: The file is unreadable, or a line of it is no sample.
    """
    if not source.dataset.startswith(NAMED_SET):
        return tuple(_sample(row, "messages" if chat else "text", where) for row, where in _rows(path))
    published = named_set(source.dataset, chat=chat)
    return tuple(
        _sample(row, published.field, where)
        for row, where in _rows(path, columns=[published.field])
        if not _is_blank(row.get(published.field))
    )


def _rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[dict[str, Any], str]]:
    return _parquet_rows(path, columns) if path.suffix == ".parquet" else _json_rows(path)


def _json_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _row(line, f"{path}:{number}"), f"{path}:{number}"
    except OSError as error:
        raise unless_io(error, ConfigError(f"cannot be read: {error}", where=str(path))) from error


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error.reason}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not a JSON object: {error}", where=where) from error
    if not isinstance(row, dict):
        raise ConfigError("not a JSON object", where=where)
    return row


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        number = 0
        for batch in ParquetFile(path).iter_batches(columns=list(columns) or None):
            for row in batch.to_pylist():
                number += 1
                yield row, f"{path} row {number}"
    except (OSError, ArrowException) as error:
        raise unless_io(error, ConfigError(f"cannot be read as parquet: {error}", where=str(path))) from error


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value == []


def _sample(row: dict[str, Any], field: str, where: str) -> Sample:
    value = row.get(field)
    if isinstance(value, list):
        return _chat(value, where)
    if isinstance(value, str) and value.strip() and field != "messages":
        return Sample(value, where)
    wrong = "is empty" if _is_blank(value) and field in row else "is not text" if field in row else "is missing"
    raise ConfigError(f"{field!r} {wrong}", where=where, hint=_hint(row, field))


def _hint(row: dict[str, Any], field: str) -> str:
    if field == "text" and "messages" in row:
        return "set calibration.chat_template: true for chats"
    if field == "messages":
        return 'write {"messages": [{"role": "user", "content": "..."}]}, or set calibration.chat_template: false'
    return f'write {{"{field}": "..."}}'


def _chat(messages: list[Any], where: str) -> Sample:
    for message in messages:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise ConfigError("a message without a role", where=where)
        if not isinstance(message.get("content"), str):
            raise ConfigError("a message without content", where=where)
    if all(_is_blank(message["content"]) for message in messages):
        raise ConfigError("'messages' is empty", where=where)
    return Sample(canonical_json(messages).decode(), where)

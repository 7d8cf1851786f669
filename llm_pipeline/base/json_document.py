"""Reading JSON that somebody else wrote: bounded, strict, and with one kind of error that names the file.

`json.loads` alone takes the last of two equal keys where other parsers take the first, reads UTF-16, turns `NaN` and
`1e999` into floats, and ends in a `RecursionError` on deep nesting. Here each of these is an `IntegrityError`:

    config = read_object(checkpoint / "config.json")
    answer = parse(body, where="https://hub.example/api/models/x", maximum_bytes=1_000_000)
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llm_pipeline.base.errors import ConfigError, IntegrityError, unless_io

RecordT = TypeVar("RecordT", bound=BaseModel)

MAXIMUM_BYTES = 100_000_000
"""Several times the largest tokenizers and weight indexes that are published."""


def load_record(kind: type[RecordT], path: Path, problem: str) -> RecordT:
    """The record in a JSON file.

    Args:
        kind: Its class.
        path: The file.
        problem: How the error begins, if the file holds no such record.

    Raises:
        IntegrityError: There is no such file, or it holds no such record.
        Transient: The disk failed; it may pass.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise unless_io(error, IntegrityError(f"{problem}: {error}", where=str(path))) from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        field = "".join(f"{part}: " for part in first["loc"][:1])
        raise IntegrityError(
            f"{problem}: {field}{first['msg']}",
            where=str(path),
            hint="it is damaged, or another version of this package wrote it: remove its artifact, or a store that "
            "holds nothing else, and release again",
        ) from error


def find_record(kind: type[RecordT], path: Path, problem: str) -> RecordT | None:
    """The same; None where there is no such file."""
    try:
        return load_record(kind, path, problem)
    except IntegrityError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def load_records(kind: type[RecordT], path: Path, problem: str) -> list[RecordT]:
    """The records in a file of JSON lines; see `load_record`."""
    try:
        with path.open(encoding="utf-8", newline="\n") as stream:
            return [kind.model_validate_json(line) for line in stream]
    except (OSError, ValueError) as error:  # pydantic's errors and UnicodeDecodeError are ValueErrors
        raise unless_io(error, IntegrityError(f"{problem}: {error}", where=str(path))) from error


def read_object(
    path: Path, *, where: str | None = None, maximum_bytes: int = MAXIMUM_BYTES, finite: bool = True
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: The file.
        where: Its name in errors; by default the path.
        maximum_bytes: A longer file is refused unread.
        finite: Refuse NaN and infinities; False for configurations of models, some of which state `Infinity`.

    Raises:
        IntegrityError: There is no such file, or it holds no JSON object within the bounds of this module.
    """
    value = read(path, where=where, maximum_bytes=maximum_bytes, finite=finite)
    if not isinstance(value, dict):
        raise _unusable("not a JSON object", where or str(path))
    return value


def read_lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a jsonl file of one's own, each with file and line; empty lines are passed over.

    Raises:
        ConfigError: It cannot be read, or a line is no JSON object.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                where, row = f"{path}:{number}", None
                try:
                    row = json.loads(line.decode())
                except UnicodeDecodeError as error:
                    raise ConfigError(f"not UTF-8: {error.reason}", where=where) from error
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"not a JSON object: {error}", where=where) from error
                if not isinstance(row, dict):
                    raise ConfigError("not a JSON object", where=where)
                yield row, where
    except OSError as error:
        raise unless_io(error, ConfigError(f"cannot be read: {error}", where=str(path))) from error


def read(path: Path, *, where: str | None = None, maximum_bytes: int = MAXIMUM_BYTES, finite: bool = True) -> Any:
    """The JSON value in a file; see `read_object`."""
    name = where or str(path)
    if not path.is_file():
        raise _unusable("there is no such file", name)
    with path.open("rb") as stream:
        data = stream.read(maximum_bytes + 1)  # the size that the file system states may be out of date
    return parse(data, where=name, maximum_bytes=maximum_bytes, finite=finite)


def refuse_lfs_pointer(data: bytes, where: str) -> None:
    """Refuse what Git leaves in place of a large file.

    Args:
        data: The file's beginning.
        where: What it is, for the error.

    Raises:
        IntegrityError: It is a pointer of Git LFS (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
    """
    if data.startswith(b"version https://git-lfs.github.com/"):
        hint = "fetch the files in the clone: git lfs pull"
        raise IntegrityError("a pointer of Git LFS, not the file", where=where, hint=hint)


def parse(data: bytes, *, where: str, maximum_bytes: int = MAXIMUM_BYTES, finite: bool = True) -> Any:
    """The value of a JSON text; see `read_object`.

    Args:
        data: The text, in UTF-8.
        where: What it is, for errors.
        maximum_bytes: Of the text.
        finite: Refuse NaN and infinities.

    Raises:
        IntegrityError: It is too long, too deep, not JSON, not UTF-8, has a key twice, or a number nobody can use.
    """
    if len(data) > maximum_bytes:
        raise _unusable(f"longer than the {maximum_bytes:,} bytes that are read", where)
    refuse_lfs_pointer(data, where)
    number = partial(_number, finite=finite)
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_without_duplicates, parse_float=number, parse_constant=number
        )
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate would fail later, wherever it is written
    except RecursionError as error:
        raise _unusable("JSON nested deeper than can be read", where) from error
    except ValueError as error:  # UnicodeError and JSONDecodeError are ValueErrors
        raise _unusable(f"not usable JSON: {_short(error)}", where) from error
    return value


def require_whole(text: str, *, where: str) -> None:
    """Refuse a text of a user's JSON with half of a surrogate pair: JSON can spell it, and nothing encodes it.

    Raises:
        ConfigError: The text holds one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        hint = "write the character whole, or remove the line"
        raise ConfigError(f"{half} is half of a character and cannot be encoded", where=where, hint=hint) from error


def _number(text: str, *, finite: bool) -> float:
    value = float(text)
    if finite and not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is not finite")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice[:80]!r} occurs twice")
    return result


def _short(error: ValueError) -> str:
    """Without the text itself, which may be long and is not ours."""
    if isinstance(error, UnicodeEncodeError):
        return "a string holds half of a surrogate pair"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return str(error)[:200]


def _unusable(problem: str, where: str) -> IntegrityError:
    return IntegrityError(problem, where=where, hint="do not use this file; replace it with the published one")

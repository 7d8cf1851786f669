"""What modelopt keeps about a quantizer as JSON: plain data only, so that nothing is ever unpickled.

JSON has no tuples, no keys that are numbers, no shapes and no element types. Each of those becomes an object with a
single key that names it, such as `{"tuple": [4, 3]}`; anything else is refused when it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pydantic import JsonValue

_TUPLE, _SIZE, _DTYPE, _ITEMS = "tuple", "size", "dtype", "items"
_TAGS = frozenset({_TUPLE, _SIZE, _DTYPE, _ITEMS})


def to_json(value: Any) -> JsonValue:
    """Encode plain data as JSON, for `from_json`.

    Raises:
        TypeError: It holds something that is no plain data.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.dtype():
            return {_DTYPE: str(value).removeprefix("torch.")}
        case list() | tuple():
            items = [to_json(item) for item in value]
            return items if isinstance(value, list) else {_SIZE if isinstance(value, torch.Size) else _TUPLE: items}
        case dict():
            return _object(value)
    raise TypeError(f"not plain data: {type(value).__name__}")


def _object(value: dict[Any, Any]) -> JsonValue:
    if all(isinstance(key, str) for key in value) and not _TAGS & value.keys():
        return {key: to_json(item) for key, item in value.items()}
    return {_ITEMS: [[to_json(key), to_json(item)] for key, item in value.items()]}


def from_json(value: JsonValue) -> Any:
    """The value that `to_json` was given.

    Raises:
        ValueError: It is nothing that `to_json` writes.
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (tag := next(iter(value))) in _TAGS:
        return _READERS[tag](value[tag])
    return {key: from_json(item) for key, item in value.items()}


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"not an element type: {name}")  # noqa: TRY004 - the JSON is wrong, not a type of ours
    return found


_READERS: Mapping[str, Callable[[Any], Any]] = {
    _TUPLE: lambda items: tuple(map(from_json, items)),
    _SIZE: torch.Size,
    _DTYPE: _dtype,
    _ITEMS: lambda items: {from_json(key): from_json(item) for key, item in items},
}

"""How two JSON values differ, by dotted path."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import JsonValue

from llm_pipeline.base.records import Frozen
from llm_pipeline.inspection.table import shortened

_ABSENT = "(none)"


class Change(Frozen):
    """One difference.

    Attributes:
        path: Where, e.g. `policy.accuracy.margin` or `recipes.fp8.weights`.
        before: The value on the first side; None also where it has none.
        after: The value on the second side; None also where it has none.
        kind: Which of the two sides have it.
    """

    path: str
    kind: Literal["added", "removed", "changed"]
    before: JsonValue = None
    after: JsonValue = None

    def __str__(self) -> str:
        before = _ABSENT if self.kind == "added" else _shown(self.before)
        after = _ABSENT if self.kind == "removed" else _shown(self.after)
        return f"{self.path}: {before} -> {after}"


def changes(before: JsonValue, after: JsonValue, path: str = "") -> list[Change]:
    """The differences of two values, in the order of the first.

    Items of a list are compared by their `name` where all have one, by position otherwise.
    """
    return list(_changes(before, after, path))


def _changes(before: JsonValue, after: JsonValue, path: str) -> Iterator[Change]:
    first, second = _by_name(before), _by_name(after)
    if first is None or second is None:
        if before == after and type(before) is type(after):  # Python takes 1 and True for equal
            return
        yield Change(path=path or ".", kind="changed", before=before, after=after)
        return
    for name in [*first, *(name for name in second if name not in first)]:
        place = f"{path}.{name}" if path else name
        if name not in second:
            yield Change(path=place, kind="removed", before=first[name])
        elif name not in first:
            yield Change(path=place, kind="added", after=second[name])
        else:
            yield from _changes(first[name], second[name], place)


def _by_name(value: JsonValue) -> Mapping[str, JsonValue] | None:
    """The parts of a value by what they are called; None for a value without parts."""
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    names = [str(item["name"]) for item in value if isinstance(item, Mapping) and "name" in item]
    if len(set(names)) == len(value):
        return dict(zip(names, value, strict=True))
    return {str(position): item for position, item in enumerate(value)}


def _shown(value: JsonValue) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))

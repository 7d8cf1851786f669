"""Hostile variants of good input, as hypothesis strategies."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

HOSTILE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1e-300, 1e300, "", " ", "x" * 100_000, "\x00", "\x1b[31m",
    "../../etc/passwd", "/etc/passwd", "http://127.0.0.1:1/", "$HOME", "${UNSET}", "NaN", "1e999", "\ud800", "\u202e",
    [], [[]], {}, {"": None}, [None], ["x"] * 1000, {"a": {"b": {"c": []}}},
)  # fmt: skip

HOSTILE_TEXTS: tuple[bytes, ...] = (
    b"", b"{", b"[" * 100_000, b"{" * 100_000, b'{"a":' * 50_000, b"\x00", b"\xff\xfe", b"\xef\xbb\xbf{}", b"null",
    b"NaN", b"1e999", b"-" * 1000, b"9" * 10_000, b'{"a": 1, "a": 2}', b'"\\ud800"', b"&a [*a, *a]", b"!!bool foo",
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", b"<<: *x", b"%YAML 9.9\n---\n", b"--- 1\n--- 2\n",
    b"? [a]\n: b\n",
)  # fmt: skip


def one_of(values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of the values, by its number: hypothesis writes a strategy out in full, and some of these are long."""
    return st.integers(0, len(values) - 1).map(lambda number: copy.deepcopy(values[number]))


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, the root left out."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, inner in items:
        found += [(*path, key), *paths_in(inner, (*path, key))]
    return found


@st.composite
def mutated(draw: st.DrawFn, value: Any, hostile: Sequence[Any] = HOSTILE_VALUES) -> Any:
    """A copy of a JSON value in which one to three places are replaced, removed or added."""
    result = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        places = paths_in(result)
        if not places:
            return result
        *way, last = draw(one_of(places))
        holder = result
        for key in way:
            holder = holder[key]
        kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if kind == "remove":
            del holder[last]
        elif kind == "add" and isinstance(holder, dict):
            holder[draw(st.text(max_size=20))] = draw(one_of(hostile))
        else:
            holder[last] = draw(one_of(hostile))
    return result


@st.composite
def mutated_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes in which a few were changed, cut out or put in."""
    result = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(result)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "truncate"]))
        if kind == "flip" and at < len(result):
            result[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del result[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            result[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "truncate":
            del result[at:]
    return bytes(result)


def documents(value: Any) -> st.SearchStrategy[bytes]:
    """JSON texts: mutated values, mutated bytes of the text, and texts that are hostile as a whole."""
    text = json.dumps(value).encode()
    as_text = mutated(value).map(lambda changed: json.dumps(changed).encode(errors="surrogatepass"))
    return st.one_of(as_text, as_text, mutated_bytes(text), one_of(HOSTILE_TEXTS))

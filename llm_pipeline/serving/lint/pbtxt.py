"""Protobuf's text format as text: positions, fields taken out without moving a line, and unfilled placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_STRING = r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'"
_TOKEN = re.compile(rf"{_STRING}|[^\s,;{{}}\[\]<>]+")
_FIELD_NAME = re.compile(r"\w+\s*:?\s*")
_PIECE = re.compile(rf"{_STRING}|#[^\n]*|[\[{{<]|[\]}}>]")
_OPENING = "[{<"
_LEFTOVER = re.compile(r"\$\{[^}\n]*\}|\{\{\s*[A-Za-z_][^}\n]*\}\}")
_FIELD_BEFORE = re.compile(r"(\w+)\s*:\s*\[?\s*$")
_KEY_BEFORE = re.compile(r'key\s*:\s*"([^"]*)"\s*,?\s*value\s*:?\s*\{\s*string_value\s*:\s*"[^"]*$')
_IN_KEY = re.compile(r'key\s*:\s*"([^"]*)$')
_STAND_INS = {"data_type": "TYPE_FP16", "max_queue_delay_microseconds": "0", "decoupled": "true", "kind": "KIND_CPU"}


def offset_of(text: str, line: int, column: int) -> int:
    """Index of a place that a parser gave as line and column, both from 1."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return min(start + column - 1, len(text))


def line_of(text: str, offset: int) -> int:
    """Line, from 1, of an index."""
    return text.count("\n", 0, offset) + 1


def token_at(text: str, offset: int) -> str:
    """The value that begins at an index: a string with its quotes, or a word."""
    match = _TOKEN.match(text, offset)
    return match[0] if match else ""


def replace_token(text: str, offset: int, replacement: str) -> str:
    """The text with another value at an index."""
    return text[:offset] + replacement + text[offset + len(token_at(text, offset)) :]


def blank_field(text: str, offset: int) -> str:
    """The text without the field that begins at an index; the lines after it keep their numbers."""
    name = _FIELD_NAME.match(text, offset)
    start = name.end() if name else offset
    end = _end_of_brackets(text, start) if text[start : start + 1] in _OPENING else start + len(token_at(text, start))
    end += len((re.match(r"\s*[,;]", text[end:]) or [""])[0])
    return text[:offset] + re.sub(r"[^\n]", " ", text[offset:end]) + text[end:]


def without_comments(text: str) -> str:
    """The text with spaces for its comments; everything else stays where it is."""
    return _PIECE.sub(lambda piece: " " * len(piece[0]) if piece[0].startswith("#") else piece[0], text)


def is_in_string_or_comment(text: str, offset: int) -> str:
    """`string` or `comment` if an index is inside one, else an empty string."""
    start = text.rfind("\n", 0, offset) + 1
    for piece in _PIECE.finditer(text, start):
        if piece.start() > offset:
            return ""
        if piece.end() > offset:
            return "comment" if piece[0].startswith("#") else "string" if piece[0][0] in "\"'" else ""
    return ""


def _end_of_brackets(text: str, start: int) -> int:
    depth = 0
    for piece in _PIECE.finditer(text, start):
        if piece[0] in _OPENING:
            depth += 1
        elif piece[0] in "]}>":
            depth -= 1
        if depth == 0:
            return piece.end()
    return len(text)


@dataclass(frozen=True)
class Leftover:
    """A placeholder.

    Attributes:
        text: With its brackets.
        line: From 1.
        in_string: The parser takes it as it is; elsewhere it refuses the file.
        parameter: The key of the parameter whose value it is, or the beginning of the key that it is in, or an empty
            string.
    """

    text: str
    line: int
    in_string: bool
    parameter: str = ""

    @property
    def name(self) -> str:
        """What was to be filled in."""
        return self.text.strip("${} ")


def find_leftovers(text: str) -> Iterator[Leftover]:
    """The placeholders of a text, those of comments excepted."""
    for match in _LEFTOVER.finditer(text):
        where = is_in_string_or_comment(text, match.start())
        if where != "comment":
            before = text[: match.start()]
            key = _KEY_BEFORE.search(before) or _IN_KEY.search(before)
            yield Leftover(match[0], line_of(text, match.start()), where == "string", key[1] if key else "")


def without_leftovers(text: str) -> str:
    """The text with stand-ins for the placeholders outside strings, so that the rest can be read."""
    return _LEFTOVER.sub(_stand_in, text)


def _stand_in(match: re.Match[str]) -> str:
    text = match.string
    if is_in_string_or_comment(text, match.start()):
        return match[0]
    field = _FIELD_BEFORE.search(text[: match.start()])
    return _STAND_INS.get(field[1] if field else "", "1")

"""Protobuf's text format as text: where things stand, and taking single fields out without moving a line."""

from __future__ import annotations

import re

_STRING = r'"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'"
_TOKEN = re.compile(rf"{_STRING}|[^\s,;{{}}\[\]<>]+")
_FIELD_NAME = re.compile(r"\w+\s*:?\s*")
_PIECE = re.compile(rf"{_STRING}|#[^\n]*|[\[{{<]|[\]}}>]")
_OPENING = "[{<"


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

"""Placeholders of templates that nobody filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llm_pipeline.serving.lint.pbtxt import is_in_string_or_comment, line_of

_LEFTOVER = re.compile(r"\$\{[^}\n]*\}|\{\{\s*[A-Za-z_][^}\n]*\}\}")
_FIELD_BEFORE = re.compile(r"(\w+)\s*:\s*\[?\s*$")
_KEY_BEFORE = re.compile(r'key\s*:\s*"([^"]*)"\s*,?\s*value\s*:?\s*\{\s*string_value\s*:\s*"[^"]*$')
_IN_KEY = re.compile(r'key\s*:\s*"([^"]*)$')
_STAND_INS = {"data_type": "TYPE_FP16", "max_queue_delay_microseconds": "0", "decoupled": "true", "kind": "KIND_CPU"}


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

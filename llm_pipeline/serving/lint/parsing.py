"""Reading `config.pbtxt` past its mistakes: each is explained and skipped, so that one run reports all of them.

The server's parser stops at the first mistake.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llm_pipeline.serving.lint.known_mistakes import ENUM_VALUES, FIELDS

if TYPE_CHECKING:
    from google.protobuf.text_format import ParseError
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_MOST_MISTAKES = 100


@dataclass(frozen=True)
class Mistake:
    """A part of the text that the parser cannot read."""

    rule: str
    message: str
    fix: str
    line: int


@dataclass(frozen=True)
class Parsed:
    """The readable part of a configuration; None if the parser could not get past a mistake."""

    config: ModelConfig | None
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True)
class _Repair:
    rule: str
    message: str
    fix: str
    text: str | None
    """The text without the mistake; None if the intention is unclear."""


def parse_config(text: str) -> Parsed:
    """Read a model configuration.

    Args:
        text: Of `config.pbtxt`, without placeholders outside its strings.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as messages

    mistakes: list[Mistake] = []
    current: str | None = text
    while current is not None and len(mistakes) < _MOST_MISTAKES:
        try:
            return Parsed(text_format.Parse(current, messages.ModelConfig()), tuple(mistakes))
        except text_format.ParseError as error:
            repair = _explain(current, error)
            mistakes.append(Mistake(repair.rule, repair.message, repair.fix, error.GetLine() or 1))
            current = repair.text
    return Parsed(None, tuple(mistakes))


def _explain(text: str, error: ParseError) -> _Repair:
    offset = offset_of(text, error.GetLine() or 1, error.GetColumn() or 1)
    for pattern, explain in _EXPLANATIONS:
        if match := re.search(pattern, str(error)):
            return explain(text, offset, match)
    return _Repair(
        "parse_error",
        f"the server cannot read it: {re.sub(r'^[0-9]+:[0-9]+ : ', '', str(error))}",
        "look at the brackets and quotes of this line and the one before",
        None,
    )


def _unknown_field(text: str, offset: int, match: re.Match[str]) -> _Repair:
    message, field = match.groups()
    return _Repair(
        "unknown_field",
        f"{message} has no field {field}",
        FIELDS.get(field) or _nearest(field, _fields(message)),
        blank_field(text, offset),
    )


def _unknown_value(text: str, offset: int, match: re.Match[str]) -> _Repair:
    enumeration, value = match.groups()
    legal = _values(enumeration)
    right = ENUM_VALUES.get(value) or _nearest(value, legal)
    rule = "data_type" if enumeration == "DataType" else "unknown_value"
    return _Repair(rule, f"{enumeration} has no {value}", right, replace_token(text, offset, _first(right, legal)))


def _plain_value(text: str, offset: int, match: re.Match[str]) -> _Repair:  # noqa: ARG001 all explanations have it
    token = token_at(text, offset)
    quoted = token if token.startswith(('"', "'")) else f'"{token}"'
    form = f"{{ string_value: {quoted} }}"
    if not re.search(r"\bvalue\s*:\s*$", text[:offset]):
        return _Repair("parse_error", f"a message in braces belongs here, not {token}", "write { ... }", None)
    return _Repair(
        "parameter_form",
        f"a parameter's value is a message, not {token}",
        f"value: {form}",
        replace_token(text, offset, form),
    )


def _two_schedulers(text: str, offset: int, match: re.Match[str]) -> _Repair:
    second, first = match.groups()
    return _Repair(
        "two_schedulers",
        f"{second} is set beside {first}: a model has one scheduler",
        f"keep one of {first} and {second}",
        blank_field(text, offset),
    )


def _field_twice(text: str, offset: int, match: re.Match[str]) -> _Repair:
    start = text.rfind(match[1], 0, offset + 1)  # the parser points at the value
    return _Repair("field_twice", f"{match[1]} is set twice", "keep one", blank_field(text, start))


def _not_a_number(text: str, offset: int, match: re.Match[str]) -> _Repair:
    found = match[1]
    bare = found.strip("\"'")
    fix = f"{bare}, without quotes" if bare != found and bare.isdecimal() else "a whole number"
    return _Repair("not_a_number", f"{found} is not a whole number", fix, replace_token(text, offset, "1"))


def _unquoted(text: str, offset: int, match: re.Match[str]) -> _Repair:
    found = match[1]
    return _Repair("unquoted_string", f"{found} needs quotes", f'"{found}"', replace_token(text, offset, f'"{found}"'))


_EXPLANATIONS: tuple[tuple[str, Callable[[str, int, re.Match[str]], _Repair]], ...] = (
    (r'"inference\.([\w.]+)" has no field named "(\w+)"', _unknown_field),
    (r'Enum type "inference\.([\w.]+)" has no value named (\w+)', _unknown_value),
    (r'Field "(\w+)" is specified along with field "(\w+)"', _two_schedulers),
    (r'should not have multiple "(\w+)" fields', _field_twice),
    (r"Couldn't parse integer: (\S+)", _not_a_number),
    (r"Expected string but found: '(\w[^']*)'", _unquoted),
    (r'Expected "\{"', _plain_value),
)


def _fields(message: str) -> list[str]:
    from tritonclient.grpc import model_config_pb2 as messages

    found = messages.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{message}")
    return [field.name for field in found.fields]


def _values(enumeration: str) -> list[str]:
    from tritonclient.grpc import model_config_pb2 as messages

    found = messages.DESCRIPTOR.pool.FindEnumTypeByName(f"inference.{enumeration}")
    return [value.name for value in found.values]


def _nearest(name: str, legal: list[str]) -> str:
    return "one of: " + ", ".join(difflib.get_close_matches(name, legal, n=3, cutoff=0.5) or legal)


def _first(advice: str, legal: list[str]) -> str:
    """A legal value to go on with: the advised one, or else any."""
    return next((word for word in re.findall(r"\w+", advice) if word in legal), legal[-1])


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


def enum_name(enumeration: Any, number: int) -> str:
    """The word for a number of an enumeration; the number where there is none, which the parser lets through."""
    name: str = enumeration.Name(number) if number in enumeration.values() else str(number)
    return name


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

"""Reading YAML that may be wrong, or meant to harm: libyaml, with bounds on size, depth, aliases and numbers.

    document = parse_yaml(path.read_bytes(), where=str(path))
    document.value  # what `yaml.safe_load` would give
    document.node   # the same as nodes, with their lines

Depth and aliases are checked on the parser's events, before any node is made: libyaml's composer recurses in C, and
deep nesting ends the process there by a segmentation fault.

YAML 1.1, with these parts of it refused, because they surprise more often than they help:

- tags (`!!bool foo`, `!!python/name:...`, `!custom`): write a plain value, in quotes for text;
- a key given twice, and a key that is no word or number (`on:` is `true`; write `"on":`);
- numbers in base 60 (`1:30` is 90) and in base 8 (`010` is 8), `.inf` and `.nan`, integers of more than 64 bits;
- NUL and other control characters, also written as escapes;
- aliases within what has an anchor itself (nine levels of nine aliases are a billion values), and more than 100.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import Reader

from llm_pipeline.base.errors import ConfigError

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: a DAG file reads dozens of these files at every parse."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_KEY = re.compile(r"[ \t-]*([\w.-]{1,60}):")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_BASE_8 = re.compile(r"[-+]?0[0-7_]+")
_YAML_TAG = "tag:yaml.org,2002:"
_NUMBER_TAGS = (f"{_YAML_TAG}int", f"{_YAML_TAG}float")
_KEY_TAGS = frozenset({f"{_YAML_TAG}str", f"{_YAML_TAG}merge", f"{_YAML_TAG}int"})
_INTEGER_BITS = 64
_LONGEST_NUMBER = 100
_LONGEST_SHOWN = 60
_MOST_ALIASES = 100


@dataclass(frozen=True)
class YamlBounds:
    """How large a document may be.

    Attributes:
        bytes: Size of the text.
        depth: Collections inside one another.
        strict: Refuse what the module's documentation lists as surprising; without it only tags and aliases
            that multiply are refused, for documents that other programs wrote.
        tags: Tags that a plain value may have; it is read as `Tagged`.
    """

    bytes: int = 256 * 1024
    depth: int = 32
    strict: bool = True
    tags: frozenset[str] = frozenset()


CONFIG_BOUNDS = YamlBounds()
"""Bounds of a file that people write. The largest of ours has 200 values."""


@dataclass(frozen=True)
class Tagged:
    """A value with a tag that the reader allows; it is kept as it is."""

    tag: str
    text: str


@dataclass(frozen=True)
class YamlDocument:
    """A document as values and as nodes; both are None for an empty one."""

    value: Any
    node: yaml.Node | None


def parse_yaml(data: bytes | str, *, where: str, bounds: YamlBounds = CONFIG_BOUNDS) -> YamlDocument:
    """Read one document in UTF-8, with or without a byte order mark; `where` names it in errors.

    Raises:
        ConfigError: It is not YAML, breaks a bound, or has something that is refused: with line, column and key.
    """
    text = _text(data, where, bounds)
    try:
        _check_events(text, bounds)
        loader = _Loader(text)
        for tag in bounds.tags:
            loader.yaml_constructors = {**loader.yaml_constructors, tag: lambda _, node: Tagged(node.tag, node.value)}
        node = loader.get_single_node()
        if node is None:
            return YamlDocument(None, None)
        if bounds.strict:
            _check_nodes(node)
        return YamlDocument(loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        raise _mistake(error, text, where) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date that there is not; a character without a code
        raise ConfigError(f"not valid YAML: {str(error).partition(chr(10))[0]}", where=where) from error


def _text(data: bytes | str, where: str, bounds: YamlBounds) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > bounds.bytes:
        raise ConfigError(
            f"larger than {bounds.bytes // 1024} KiB", where=where, hint="configuration is short: is this the file?"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"cannot be read: byte 0x{data[error.start]:02x} is not UTF-8"
        raise _bad_byte(problem, data[: error.start], where, "save the file as UTF-8") from error
    if found := Reader.NON_PRINTABLE.search(text):
        problem = f"not valid YAML: the control character U+{ord(found[0]):04X}"
        raise _bad_byte(problem, text[: found.start()].encode(), where, "remove it")
    return text


def _bad_byte(problem: str, before: bytes, where: str, hint: str) -> ConfigError:
    line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
    return ConfigError(f"{problem} (column {column})", where=f"{where}:{line}", hint=hint)


def _mistake(error: yaml.MarkedYAMLError, text: str, where: str) -> ConfigError:
    """The error with its line, and the key that begins there; a quote that is never closed is told where it opens."""
    opened = error.context is not None and "quoted scalar" in error.context
    mark = (error.context_mark if opened else error.problem_mark) or error.context_mark
    if mark is None:
        return ConfigError(f"not valid YAML: {error.problem or error.context}", where=where)
    lines = text.splitlines()
    key = _KEY.match(lines[mark.line]) if mark.line < len(lines) else None
    about = f"{key[1]}: " if key else ""
    problem = f"{about}not valid YAML: {error.problem or error.context} (column {mark.column + 1})"
    return ConfigError(problem, where=f"{where}:{mark.line + 1}")


def _check_events(text: str, bounds: YamlBounds) -> None:
    """Refuse what must not be composed, or made a value."""
    open_anchors: list[bool] = []
    aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if any(open_anchors):
                raise _refused("an alias within what has an anchor", event.start_mark)
            if aliases > _MOST_ALIASES:
                raise _refused(f"more than {_MOST_ALIASES} aliases", event.start_mark)
        elif isinstance(event, yaml.NodeEvent):
            tag = getattr(event, "tag", None)
            if tag is not None and not (isinstance(event, yaml.ScalarEvent) and tag in bounds.tags):
                shown = _shown(tag.replace(_YAML_TAG, "!!"))
                raise _refused(f"the tag {shown}: write a plain value, in quotes if it is text", event.start_mark)
            if isinstance(event, yaml.CollectionStartEvent):
                open_anchors.append(event.anchor is not None)
                if len(open_anchors) > bounds.depth:
                    raise _refused(f"nested deeper than {bounds.depth} levels", event.start_mark)


def _check_nodes(node: yaml.Node) -> None:
    """Refuse keys, numbers and characters that surprise."""
    if isinstance(node, yaml.ScalarNode):
        if _CONTROL.search(node.value):
            raise _refused("a control character", node.start_mark)
        if node.tag in _NUMBER_TAGS:
            _check_number(node)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_nodes(item)
    elif isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key must be a plain word", key.start_mark)
            if key.tag not in _KEY_TAGS:
                problem = f"the key {_shown(key.value)} is no word to YAML: put it into quotes"
                raise _refused(problem, key.start_mark)
            if key.value in keys:
                raise _refused(f"the key {_shown(key.value)} is given twice", key.start_mark)
            keys.add(key.value)
            _check_nodes(key)
            _check_nodes(value)


def _check_number(node: yaml.ScalarNode) -> None:
    if len(node.value) > _LONGEST_NUMBER:
        raise _refused(f"a number of {len(node.value)} characters", node.start_mark)
    value: float = yaml.safe_load(node.value)
    if _BASE_60.fullmatch(node.value):
        raise _refused(f"{node.value} is {value} in YAML (base 60): write that, or put it into quotes", node.start_mark)
    if isinstance(value, int) and _BASE_8.fullmatch(node.value):
        raise _refused(f"{node.value} is {value} in YAML (base 8): write that, or put it into quotes", node.start_mark)
    if not math.isfinite(value):
        raise _refused(f"{node.value} is no finite number", node.start_mark)
    if isinstance(value, int) and value.bit_length() >= _INTEGER_BITS:
        raise _refused(f"{node.value} has more than {_INTEGER_BITS} bits", node.start_mark)


def _refused(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")

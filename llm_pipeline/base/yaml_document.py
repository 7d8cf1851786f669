"""Reading YAML that may be wrong, or meant to harm: libyaml, with bounds on size, depth and aliases.

    document = parse_yaml(path.read_bytes(), where=str(path))
    document.value  # what `yaml.safe_load` would give
    document.node   # the same as nodes, with their lines

Depth and aliases are checked on the parser's events, before any node is made: libyaml's composer recurses in C, and
deep nesting ends the process there by a segmentation fault.

YAML 1.1 as PyYAML reads it, with these parts of it refused:

- tags (`!!bool foo`, `!!python/name:...`, `!custom`): write a plain value, in quotes for text;
- a key given twice, and a key that is no word or number (`on:` is `true`; write `"on":`);
- aliases within what has an anchor itself (nine levels of nine aliases are a billion values), and more than 100.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from llm_pipeline.base.errors import ConfigError

_Loader: type[Any] = yaml.CSafeLoader

_KEY = re.compile(r"[ \t-]*([\w.-]{1,60}):")
_YAML_TAG = "tag:yaml.org,2002:"
_KEY_TAGS = frozenset({f"{_YAML_TAG}str", f"{_YAML_TAG}merge", f"{_YAML_TAG}int"})
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
            _check_keys(node)
        return YamlDocument(loader.construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        raise _mistake(error, text, where) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date that there is not; a character without a code
        raise ConfigError(f"not valid YAML: {str(error).partition(chr(10))[0]}", where=where) from error


def _text(data: bytes | str, where: str, bounds: YamlBounds) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > bounds.bytes:
        hint = "configuration is short: is this the file?"
        raise ConfigError(f"larger than {bounds.bytes // 1024} KiB", where=where, hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"cannot be read: byte 0x{data[error.start]:02x} is not UTF-8"
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(problem, where=f"{where}:{line}", hint="save the file as UTF-8") from error


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
            if "\0" in getattr(event, "value", ""):
                raise _refused("a NUL character, which no path or name can have", event.start_mark)
            if tag is not None and not (isinstance(event, yaml.ScalarEvent) and tag in bounds.tags):
                shown = _shown(tag.replace(_YAML_TAG, "!!"))
                raise _refused(f"the tag {shown}: write a plain value, in quotes if it is text", event.start_mark)
            if isinstance(event, yaml.CollectionStartEvent):
                open_anchors.append(event.anchor is not None)
                if len(open_anchors) > bounds.depth:
                    raise _refused(f"nested deeper than {bounds.depth} levels", event.start_mark)


def _check_keys(node: yaml.Node) -> None:
    """Refuse keys that are given twice or are no words."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item)
    elif isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEY_TAGS:
                raise _refused("a key must be a plain word: put it into quotes", key.start_mark)
            if key.value in keys:
                raise _refused(f"the key {_shown(key.value)} is given twice", key.start_mark)
            keys.add(key.value)
            _check_keys(value)


def _refused(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")

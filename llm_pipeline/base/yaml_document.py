"""Reading YAML that may be wrong, or meant to harm: one reader with bounds on size, depth, aliases and numbers.

    document = parse_yaml(path.read_bytes(), where=str(path))
    document.value  # what `yaml.safe_load` would give
    document.node   # the same as nodes, with their lines

The bounds are checked on the parser's events, before any node is made: libyaml's own composer recurses in C, and deep
nesting ends the process there by a segmentation fault.

YAML 1.1, with these parts of it refused, because they surprise more often than they help:

- tags (`!!bool foo`, `!!python/name:...`, `!custom`): write a plain value, in quotes for text;
- a key given twice, and a key that is no word or number (`on:` is `true`; write `"on":`);
- numbers in base 60 (`1:30` is 90) and in base 8 (`010` is 8), `.inf` and `.nan`, integers of more than 64 bits;
- NUL and other control characters, also written as escapes.

Anchors, aliases and merge keys (`<<`) work, and count as often as they are used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.reader import Reader
from yaml.resolver import Resolver

from llm_pipeline.base.errors import ConfigError

_Parser: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it: a DAG file reads dozens of these files at every parse."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_BASE_8 = re.compile(r"[-+]?0[0-7_]+")
_YAML_TAG = "tag:yaml.org,2002:"
_INTEGER_TAG, _FLOAT_TAG = f"{_YAML_TAG}int", f"{_YAML_TAG}float"
_KEY_TAGS = frozenset({f"{_YAML_TAG}str", f"{_YAML_TAG}merge", _INTEGER_TAG})
_INTEGER_BITS = 64
_LONGEST_NUMBER = 100
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class YamlBounds:
    """How large a document may be.

    Attributes:
        bytes: Size of the text.
        depth: Collections inside one another.
        nodes: Values, keys and collections together, those behind an alias counted at each use.
        strict: Refuse what the module's documentation lists as surprising; without it only tags are refused, for
            documents that other programs wrote.
        tags: Tags that a plain value may have; it is read as `Tagged`.
    """

    bytes: int = 256 * 1024
    depth: int = 32
    nodes: int = 20_000
    strict: bool = True
    tags: frozenset[str] = frozenset()


CONFIG_BOUNDS = YamlBounds()
"""Bounds of a file that people write. The largest of ours has 200 nodes."""


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
    composer = _Composer(_text(data, where, bounds), bounds)
    try:
        node = composer.get_single_node()
        return YamlDocument(None if node is None else _Constructor(bounds).construct_document(node), node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _mistake(str(error.problem or error.context), where, mark, composer.key_at(mark)) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a date that there is not; a character without a code
        raise _mistake(_first_line(error), where, composer.mark, composer.key) from error


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


def _mistake(problem: str, where: str, mark: Any, key: str) -> ConfigError:
    place = f"{where}:{mark.line + 1}" if mark else where
    column = f" (column {mark.column + 1})" if mark else ""
    about = f"{key}: " if key else ""
    return ConfigError(f"{about}not valid YAML: {problem}{column}", where=place)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@dataclass
class _Collection:
    """A mapping or sequence whose end has not come yet."""

    mark: Any
    is_mapping: bool
    anchor: str | None
    begins_at: int
    keys: set[str] = field(default_factory=set)
    key: str = ""
    expects_key: bool = True
    length: int = 0

    @property
    def place(self) -> str:
        """The key, or the position, of the value that is being read."""
        return self.key if self.is_mapping else str(max(0, self.length - 1))


class _Composer(Composer, Resolver):
    """PyYAML's composer, fed with events that were checked one by one."""

    def __init__(self, text: str, bounds: YamlBounds) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self._bounds = bounds
        self._open: list[_Collection] = []
        self._sizes: dict[str, int | None] = {}
        self._nodes = 0
        self._keys_by_place: dict[tuple[int, int], str] = {}
        self.mark: Any = None
        self._parser = _Parser(text)

    @property
    def key(self) -> str:
        """The key that was read last, from the top: `a.b.0`."""
        return ".".join(place for found in self._open if (place := found.place))

    def key_at(self, mark: Any) -> str:
        """The key of the value that begins there; of what was read last, for any other place."""
        return self._keys_by_place.get((mark.line, mark.column), self.key) if mark else self.key

    def check_event(self, *choices: type[yaml.Event]) -> bool:
        return bool(self._parser.check_event(*choices))

    def peek_event(self) -> yaml.Event:
        event: yaml.Event = self._parser.peek_event()
        return event

    def get_event(self) -> yaml.Event:
        event: yaml.Event = self._parser.get_event()
        if isinstance(event, yaml.NodeEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = self._open.pop()
            if ended.anchor:
                self._sizes[ended.anchor] = self._nodes - ended.begins_at
        return event

    def _begin(self, event: Any) -> None:
        self.mark = event.start_mark
        self._place(event)
        self._keys_by_place[event.start_mark.line, event.start_mark.column] = self.key
        self._count(event)
        is_known = isinstance(event, yaml.ScalarEvent) and event.tag in self._bounds.tags
        if getattr(event, "tag", None) is not None and not is_known:
            tag = event.tag.replace(_YAML_TAG, "!!")
            raise _refused(f"the tag {_shown(tag)}: write a plain value, in quotes if it is text", event)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) >= self._bounds.depth:
                raise _refused(f"nested deeper than {self._bounds.depth} levels", event)
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            self._open.append(_Collection(event.start_mark, is_mapping, event.anchor, self._nodes - 1))
        elif isinstance(event, yaml.ScalarEvent) and self._bounds.strict and _CONTROL.search(event.value):
            raise _refused("a control character", event)

    def _place(self, event: Any) -> None:
        """Note where the next node is: in a mapping, keys and values take turns."""
        if not self._open:
            return
        holder = self._open[-1]
        holder.length += 1
        if not holder.is_mapping:
            return
        if holder.expects_key:
            self._check_key(holder, event)
        holder.expects_key = not holder.expects_key

    def _check_key(self, holder: _Collection, event: Any) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise _refused("a key must be a plain word", event)
        holder.key = event.value
        if not self._bounds.strict:
            return
        tag = self.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if tag not in _KEY_TAGS:
            raise _refused(f"the key {_shown(event.value)} is no word to YAML: put it into quotes", event)
        if event.value in holder.keys:
            raise _refused(f"the key {_shown(event.value)} is given twice", event)
        holder.keys.add(event.value)

    def _count(self, event: Any) -> None:
        size = 1
        if isinstance(event, yaml.AliasEvent):
            known = self._sizes.get(event.anchor or "", 1)  # the composer refuses one that was never defined
            if known is None:
                raise _refused("an alias refers to what holds it", event)
            size = known
        elif event.anchor:
            self._sizes[event.anchor] = None if isinstance(event, yaml.CollectionStartEvent) else 1
        self._nodes += size
        if self._nodes > self._bounds.nodes:
            raise _refused(f"more than {self._bounds.nodes} values, aliases counted at each use", event)


def _refused(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")


class _Constructor(SafeConstructor):
    """PyYAML's safe constructor, which marks numbers that YAML reads in a surprising way."""

    def __init__(self, bounds: YamlBounds) -> None:
        super().__init__()
        self._strict, self._tags = bounds.strict, bounds.tags

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Hashable:
        if node.tag in self._tags:
            return Tagged(node.tag, str(node.value))
        if node.tag in (_INTEGER_TAG, _FLOAT_TAG) and len(node.value) > _LONGEST_NUMBER:
            raise _problem(f"a number of {len(node.value)} characters", node)
        try:
            value: Hashable = super().construct_object(node, deep=deep)
        except (ValueError, OverflowError) as error:
            raise _problem(f"{_shown(str(node.value))} is no value of its kind: {_first_line(error)}", node) from error
        if self._strict and isinstance(value, int | float) and isinstance(node, yaml.ScalarNode):
            _check_number(value, node)
        return value


def _check_number(value: float, node: yaml.ScalarNode) -> None:
    if _BASE_60.fullmatch(node.value):
        raise _problem(f"{node.value} is {value} in YAML (base 60): write that, or put it into quotes", node)
    if node.tag == _INTEGER_TAG and _BASE_8.fullmatch(node.value):
        raise _problem(f"{node.value} is {value} in YAML (base 8): write that, or put it into quotes", node)
    if not math.isfinite(value):
        raise _problem(f"{node.value} is no finite number", node)
    if isinstance(value, int) and value.bit_length() >= _INTEGER_BITS:
        raise _problem(f"{node.value} has more than {_INTEGER_BITS} bits", node)


def _problem(problem: str, node: yaml.Node) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)

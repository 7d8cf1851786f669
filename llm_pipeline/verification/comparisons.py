"""A real TensorRT-LLM against what is recorded: the flags of `trtllm-build`, and the schema of its LLM args. Pure.

Upstream's parser writes its help with argparse's `ArgumentDefaultsHelpFormatter` (tensorrt_llm/commands/build.py), so
defaults are compared wherever the text has them. Classes of the LLM args are compared by name; descriptions and bounds
are left out: what makes a file legal is its keys, their types and their listed values. Defaults are compared where both
schemas state a plain one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import BuildFlag, build_flags, removed_flags
from llm_pipeline.engines.llm_args.recorded_schema import Node

_OPTION = re.compile(r"^ {2}(?=-)")
_NAME = re.compile(r"--[\w-]+")
_CHOICES = re.compile(r"\{([^}]*)\}")
_DEFAULT = re.compile(r"\(default: (.*)\)\s*$")
_INVOCATION_END = re.compile(r" {2,}|\n")
_UNSET = "(unset)"
_ROOT = "LLM args"
_ANY = "any"
_UNIONS = ("anyOf", "oneOf", "allOf")


@dataclass(frozen=True)
class HelpFlag:
    """One flag as a help text shows it.

    Attributes:
        names: Its spellings, with dashes.
        choices: Legal values; None where none are listed.
        takes_value: Whether a value follows it.
        default: As text; None where the help does not say.
    """

    names: tuple[str, ...]
    choices: tuple[str, ...] | None
    takes_value: bool
    default: str | None


def read_help(text: str) -> tuple[HelpFlag, ...]:
    """The flags of a help text that argparse wrote, but `--help`."""
    found = (_read_flag(block) for block in _blocks(text))
    return tuple(flag for flag in found if "--help" not in flag.names)


def flag_differences(text: str) -> tuple[str, ...]:
    """How the flags of a help text differ from the recorded ones, one line each; missing flags come first."""
    installed = {name: flag for flag in read_help(text) for name in flag.names}
    recorded = {name for flag in build_flags().values() for name in (flag.name, *flag.aliases)}
    missing = [f"{name}: recorded, not installed" for name in sorted(recorded - set(installed))]
    back = [f"--{name}: recorded as removed, installed" for name in removed_flags() if f"--{name}" in installed]
    new = [
        f"{name}: installed, not recorded ({_describe(installed[name])})"
        for name in sorted(set(installed) - recorded - {f"--{removed}" for removed in removed_flags()})
    ]
    common = [flag for flag in build_flags().values() if flag.name in installed]
    changed = [line for flag in common for line in _changes(flag, installed[flag.name])]
    return (*missing, *back, *changed, *new)


def _blocks(text: str) -> Iterator[str]:
    """Each option with its help, continuation lines included."""
    block = ""
    for line in text.splitlines():
        if _OPTION.match(line) or not line.startswith("   "):
            if block:
                yield block
            block = line if _OPTION.match(line) else ""
        elif block:
            block += "\n" + line
    if block:
        yield block


def _read_flag(block: str) -> HelpFlag:
    invocation = _INVOCATION_END.split(block.strip(), maxsplit=1)[0]
    choices, default = _CHOICES.search(invocation), _DEFAULT.search(" ".join(block.split()))
    return HelpFlag(
        names=tuple(dict.fromkeys(_NAME.findall(_CHOICES.sub("", invocation)))),
        choices=tuple(choices[1].split(",")) if choices else None,
        takes_value=" " in invocation.partition(",")[0] or choices is not None,
        default=default[1] if default else None,
    )


def _changes(recorded: BuildFlag, installed: HelpFlag) -> Iterator[str]:
    takes_value = recorded.type != "flag"
    if takes_value != installed.takes_value:
        words = {True: "takes a value", False: "takes none"}
        yield f"{recorded.name}: {words[takes_value]} as recorded, {words[installed.takes_value]} as installed"
    if set(recorded.choices or ()) != set(installed.choices or ()):
        yield f"{recorded.name}: choices {_listed(recorded.choices)} recorded, {_listed(installed.choices)} installed"
    default = str(recorded.default)
    if installed.default not in (None, default) and default != _UNSET:
        evidence = "" if recorded.default_evidence == "seen" else f" ({recorded.default_evidence})"
        yield f"{recorded.name}: default {default} recorded{evidence}, {installed.default} installed"


def _describe(flag: HelpFlag) -> str:
    value = _listed(flag.choices) if flag.choices else "a value" if flag.takes_value else "no value"
    return value if flag.default is None else f"{value}, default {flag.default}"


def _listed(choices: tuple[str, ...] | None) -> str:
    return "|".join(choices) if choices else "any"


def schema_differences(recorded: Node, installed: Node) -> tuple[str, ...]:
    """How an installed schema differs from a recorded one, one line each; keys and classes that are gone come first."""
    ours, theirs = _classes(recorded), _classes(installed)
    gone = [f"class {name}: recorded, not installed" for name in sorted(ours.keys() - theirs.keys())]
    new = [f"class {name}: installed, not recorded" for name in sorted(theirs.keys() - ours.keys())]
    missing, changed, added = list[str](), list[str](), list[str]()
    for name in (name for name in ours if name in theirs):
        if ours[name].get("x-open"):
            continue
        before, after = _properties(ours[name]), _properties(theirs[name])
        missing += [f"{name}.{key}: recorded, not installed{_doubt(before[key])}" for key in before if key not in after]
        added += [f"{name}.{key}: installed, not recorded ({_show(after[key], installed)})"
                  for key in after if key not in before]  # fmt: skip
        for key in (key for key in before if key in after):
            changed += [
                f"{name}.{key}: {line}" for line in _schema_changes(before[key], recorded, after[key], installed)
            ]
        if ours[name].get("additionalProperties") is False and theirs[name].get("additionalProperties") is not False:
            changed.append(f"{name}: unknown keys are refused as recorded, accepted as installed")
    return (*gone, *missing, *changed, *added, *new)


def _classes(schema: Node) -> dict[str, Node]:
    """The object schemas by class name, the whole first; enumerations are compared where they are used."""
    nested = {name: node for name, node in schema.get("$defs", {}).items() if "properties" in node or _is_open(node)}
    return {_ROOT: schema, **nested}


def _is_open(node: Node) -> bool:
    return bool(node.get("x-open")) or node.get("type") == "object"


def _properties(node: Node) -> Mapping[str, Node]:
    properties: dict[str, Node] = node.get("properties", {})
    return properties


def _schema_changes(before: Node, recorded: Node, after: Node, installed: Node) -> Iterator[str]:
    ours, theirs = _kinds(before, recorded), _kinds(after, installed)
    if ours != theirs and _ANY not in ours | theirs:
        yield f"{_kinds_text(ours)} recorded, {_kinds_text(theirs)} installed"
    is_plain = "default" in before and not isinstance(after.get("default", {}), dict)  # pydantic spells classes out
    if is_plain and before["default"] != after["default"]:
        yield f"default {json.dumps(before['default'])} recorded, {json.dumps(after['default'])} installed"


def _kinds(node: Node, schema: Node) -> frozenset[str]:
    """What a value may be: names of types and classes, and listed values as JSON."""
    if reference := node.get("$ref"):
        name = str(reference).rpartition("/")[2]
        target: Node = schema.get("$defs", {}).get(name, {})
        return frozenset({name}) if "properties" in target or _is_open(target) else _kinds(target, schema)
    if "enum" in node or "const" in node:
        return frozenset(json.dumps(value) for value in node.get("enum", [node.get("const")]))
    if union := next((node[name] for name in _UNIONS if name in node), None):
        return frozenset(kind for branch in union for kind in _kinds(branch, schema))
    types = node.get("type", _ANY)
    return frozenset([types] if isinstance(types, str) else types)


def _kinds_text(kinds: frozenset[str]) -> str:
    return "|".join(sorted(kinds))


def _show(node: Node, schema: Node) -> str:
    kinds = _kinds_text(_kinds(node, schema))
    return f"{kinds}, default {json.dumps(node['default'])}" if "default" in node else kinds


def _doubt(node: Node) -> str:
    return f" (recorded with a doubt: {node['x-seen']})" if "x-seen" in node else ""

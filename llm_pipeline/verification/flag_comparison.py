"""The help text of a real `trtllm-build` against the recorded table of its flags. Pure.

Upstream's parser writes its help with argparse's `ArgumentDefaultsHelpFormatter` (tensorrt_llm/commands/build.py), so
defaults are compared wherever the text has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from llm_pipeline.engines.trtllm_build.flag_table import BuildFlag, build_flags, removed_flags

_OPTION = re.compile(r"^ {2}(?=-)")
_NAME = re.compile(r"--[\w-]+")
_CHOICES = re.compile(r"\{([^}]*)\}")
_DEFAULT = re.compile(r"\(default: (.*)\)\s*$")
_INVOCATION_END = re.compile(r" {2,}|\n")
_UNSET = "(unset)"


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

"""Whether the flags of a build are legal: names, values, GPU, and each other. Pure.

The tool finds some of these only after minutes, ignores others, and takes values back with a line in its log.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from llm_pipeline.engines.trtllm_build.flag_table import (
    BuildFlag,
    FlagValue,
    build_flags,
    find_flag,
    is_on,
    refused_on,
    removed_flags,
)


def flag_problems(settings: Mapping[str, FlagValue], sm: str) -> tuple[str, ...]:
    """What is wrong with flags (by name without dashes) on a compute capability, one line each."""
    return tuple(problem for key, value in settings.items() for problem in _problems_of(key, value, settings, sm))


def architecture_problems(settings: Mapping[str, FlagValue], architecture: str) -> tuple[str, ...]:
    """Flags that are on and do not work for a model's architecture, one line each."""
    on = (build_flags()[key] for key, value in settings.items() if key in build_flags() and is_on(value))
    return tuple(
        f"{flag.name} works for {', '.join(flag.architectures)} only, this is {architecture}"
        for flag in on
        if flag.architectures and architecture not in flag.architectures
    )


def render_flag(flag: BuildFlag, value: FlagValue) -> list[str]:
    """A legal flag and its value as arguments."""
    if flag.type == "flag":
        return [flag.name] if value else []
    if flag.type.endswith("+"):
        return [flag.name, *_parts(str(value))]
    if flag.is_switch and isinstance(value, bool):
        return [flag.name, "enable" if value else "disable"]
    return [flag.name, str(value)]


def _problems_of(key: str, value: FlagValue, settings: Mapping[str, FlagValue], sm: str) -> Iterator[str]:
    flag = find_flag(key)
    if flag is None:
        yield _unknown(key)
        return
    if wrong := _wrong_value(flag, value):
        yield wrong
        return
    if flag.status == "deprecated":
        yield f"{flag.name} is deprecated: {flag.replacement or flag.note}"
    if not is_on(value):
        return
    if flag.status == "unsupported":
        yield f"{flag.name} is not supported any more: {flag.note}"
    yield from _problems_on_gpu(flag, sm)
    yield from _problems_with_others(flag, settings)


def _unknown(key: str) -> str:
    name = key.removeprefix("--")
    if name in removed_flags():
        return f"--{name} was removed from trtllm-build: {removed_flags()[name]}"
    if key != name:
        return f"write {name} without dashes"
    near = difflib.get_close_matches(name, build_flags(), n=1)
    return f"trtllm-build has no --{name}" + (f"; did you mean {near[0]}?" if near else "")


def _wrong_value(flag: BuildFlag, value: FlagValue) -> str | None:
    if flag.type == "flag":
        return None if isinstance(value, bool) else f"{flag.name} takes true or false, not {value!r}"
    if flag.is_switch and isinstance(value, bool):
        return None
    if flag.type == "int":
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if whole else f"{flag.name} takes a whole number, not {value!r}"
    given = _parts(value) if flag.type.endswith("+") and isinstance(value, str) else [value]
    if not given or not all(isinstance(one, str) and one and not one.startswith("-") for one in given):
        return (
            f"{flag.name} takes {'words, separated by commas' if flag.type.endswith('+') else 'a word'}, not {value!r}"
        )
    illegal = [str(one) for one in given if flag.choices and one not in flag.choices]
    if illegal:
        return f"{flag.name} cannot be {', '.join(illegal)}: it is one of {', '.join(flag.choices or ())}"
    return None


def _problems_on_gpu(flag: BuildFlag, sm: str) -> Iterator[str]:
    limit = flag.gpu
    if flag.key in refused_on(sm) or (limit and sm in limit.refused):
        yield f"{flag.name} is refused on {sm}"
    elif limit and limit.only and sm not in limit.only:
        yield f"{flag.name} is for {', '.join(limit.only)} only, this is {sm}"


def _problems_with_others(flag: BuildFlag, settings: Mapping[str, FlagValue]) -> Iterator[str]:
    for requirement in flag.requires:
        if not is_on(_effective(requirement.partition(" ")[0], settings)):
            yield f"{flag.name} needs {requirement}"
    for name in flag.conflicts:
        if is_on(settings.get(name.removeprefix("--"))):
            yield f"{flag.name} cannot be used with {name}"


def _effective(name: str, settings: Mapping[str, FlagValue]) -> FlagValue | None:
    key = name.removeprefix("--")
    return settings.get(key, build_flags()[key].default)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]

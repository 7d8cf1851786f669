"""Loading YAML configuration: every mistake is reported with its file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import read_plain_file
from llm_pipeline.base.yaml_document import CONFIG_BOUNDS, parse_yaml
from llm_pipeline.config.files import yaml_files
from llm_pipeline.config.model import PathsRelativeTo
from llm_pipeline.config.schemas import Schema, range_of, schema_of, schemas_at

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[int | str, ...]

_OUT_OF_RANGE = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}
_LONGEST_INPUT_SHOWN = 80
"""Characters of a wrong value that an error quotes; a whole section is not repeated."""

_MOST_MISTAKES_TOLD = 20

_READ: ContextVar[dict[tuple[Path, type[BaseModel]], Any] | None] = ContextVar("files_read", default=None)


@contextmanager
def each_file_read_once() -> Iterator[None]:
    """Read no file twice in the block: releases share their deployment, policy, recipes and targets."""
    if _READ.get() is not None:
        yield
        return
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)


def load_yaml(path: Path, model: type[ModelT]) -> ModelT:
    """Read one YAML file into a model. Its `name` is the file's, and its paths are relative to the file.

    Raises:
        ConfigError: The file is missing, is not YAML, or does not fit the model; one line a mistake, and
            the first twenty of them.
    """
    known = _READ.get()
    if known is None:
        known = {}
    if (path, model) not in known:
        known[path, model] = _load(path, model)
    found: ModelT = known[path, model]
    return found


def _load(path: Path, model: type[ModelT]) -> ModelT:
    document = parse_yaml(_read(path), where=str(path))
    data, node = document.value, document.node
    if not isinstance(data, dict):
        raise ConfigError("expected keys and values", where=f"{path}:1")
    if "name" in model.model_fields and data.setdefault("name", path.stem) != path.stem:
        problem = f"name is {_short(repr(data['name']))} but the file is named {path.stem!r}"
        raise ConfigError(problem, where=f"{path}:{_located(node, ('name',))[1]}")
    try:
        return model.model_validate(data, context=PathsRelativeTo(path.resolve().parent))
    except ValidationError as error:
        schema = schema_of(model)
        found = _told_once(schema, error.errors())
        mistakes = [_mistake(path, node, schema, details) for details in found[:_MOST_MISTAKES_TOLD]]
        if untold := len(found) - len(mistakes):
            mistakes.append(f"... and {untold} more")
        raise ConfigError("\n".join(mistakes), hint=f"correct {path.name}; nothing was started") from error


def _read(path: Path) -> bytes:
    """The file's bytes, or one more than the bound, which the reader then refuses."""
    if path.is_dir():
        there = sorted([*yaml_files(path), *yaml_files(path / "releases"), *yaml_files(path / "deployments")])
        hint = f"name a file in it, such as {', '.join(map(str, there[:3]))}" if there else "name a file"
        raise ConfigError("cannot be read: it is a directory", where=str(path), hint=hint)
    try:
        return read_plain_file(path, CONFIG_BOUNDS.bytes + 1)
    except FileNotFoundError as error:
        raise ConfigError("no such file", where=str(path), hint=_suggest_file(path)) from error


def _told_once(schema: Schema, errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without what another one says already: a missing key that is misspelt, a list too short for its wrong items."""
    unknown = [details["loc"] for details in errors if details["type"] == "extra_forbidden"]
    told = {("missing", (*location[:-1], _nearest_key(schema, location))) for location in unknown}
    told |= {("too_short", details["loc"][:-1]) for details in errors}
    return [details for details in errors if (details["type"], details["loc"]) not in told]


def _mistake(path: Path, node: yaml.Node | None, schema: Schema, details: ErrorDetails) -> str:
    location, line = _located(node, details["loc"], missing=details["type"] == "missing")
    place = f"{path}:{line}"
    key = ".".join(_short(str(part)) for part in location) or "file"
    if details["type"] == "extra_forbidden":
        return f"{place}: unknown key {key}{_suggest_key(schema, location)}"
    if details["type"] == "missing":
        return f"{place}: missing key {key}"
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] in _OUT_OF_RANGE:
        allowed = [range_of(one, schema) for one in schemas_at(schema, details["loc"])]
        message = f"must be {next(filter(None, allowed), 'a number')}"
    elif details["type"] == "string_pattern_mismatch" and "://" in details["ctx"]["pattern"]:  # long, and no advice
        *above, field = details["loc"]
        around = (one.get("properties", {}).get(field, {}) for one in schemas_at(schema, tuple(above)))
        told = (str(one["description"]).rstrip(".") for one in around if "description" in one)
        message = f"not in the form that it takes: {next(told, '')}"
    given = repr(details["input"])
    shown = f" (got {given})" if len(given) <= _LONGEST_INPUT_SHOWN else ""
    return f"{place}: {key}: {message}{shown}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_INPUT_SHOWN else f"{text[:_LONGEST_INPUT_SHOWN]}..."


def _located(node: yaml.Node | None, location: Location, *, missing: bool = False) -> tuple[Location, int]:
    """The keys of a location that the file has, and the line of the last one that is there.

    A field of several kinds puts the kind into the location, which is no key; where one is missing, it is the last.
    """
    keys: list[str | int] = []
    line = node.start_mark.line if node else 0
    for number, part in enumerate(location):
        if isinstance(node, yaml.MappingNode):
            found = [pair for pair in node.value if pair[0].value == str(part)]
            if found:
                line, node = found[0][0].start_mark.line, found[0][1]
            elif not (missing and number == len(location) - 1):
                continue
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part < len(node.value):  # else it is an item that is missing
                node = node.value[part]
                line = node.start_mark.line
        else:  # short for the settings of a kind, or no settings at all
            break
        keys.append(part)
    return tuple(keys), line + 1


def _suggest_key(schema: Schema, location: Location) -> str:
    known = _known_keys(schema, location)
    if location[-1] in known:
        return ": another kind has it"
    if nearest := _nearest_key(schema, location):
        return f": did you mean {nearest}?"
    return f": known keys are {', '.join(known)}"


def _nearest_key(schema: Schema, location: Location) -> str:
    close = difflib.get_close_matches(str(location[-1]), _known_keys(schema, location), n=1)
    return close[0] if close else ""


def _known_keys(schema: Schema, location: Location) -> list[str]:
    """The keys that there are beside the last one of a location."""
    return list(dict.fromkeys(key for one in schemas_at(schema, location[:-1]) for key in one.get("properties", ())))


def _suggest_file(path: Path) -> str:
    """What there is: beside the path, or where a project and a clone keep releases."""
    beside = path.absolute().parent
    for name, folder in ((beside.name, beside), *((name, beside / name) for name in ("releases", "configs/releases"))):
        if there := [found.stem for found in yaml_files(folder)]:
            return f"{name}/ has: {', '.join(there)}"
    return "check the path"


def where_in(path: Path, location: Location) -> str:
    """The file and line of a key, for an error about its value."""
    return f"{path}:{_located(parse_yaml(_read(path), where=str(path)).node, location)[1]}"


@contextmanager
def errors_at(path: Path, location: Location) -> Iterator[None]:
    """Give an error the place in the file that it is about."""
    try:
        yield
    except ConfigError as error:
        key = ".".join(part for part in location if isinstance(part, str))
        about = f"{error.where}: " if error.where else ""
        raise ConfigError(f"{key}: {about}{error.message}", where=where_in(path, location), hint=error.hint) from error

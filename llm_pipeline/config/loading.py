"""Loading YAML configuration: every mistake is reported with its file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import DATA_FILE_BYTES, problem_of_plain_file, read_plain_file
from llm_pipeline.base.yaml_document import CONFIG_BOUNDS, parse_yaml
from llm_pipeline.catalog.modelopt_recipes import check_kv_cache, check_modelopt_recipe
from llm_pipeline.catalog.named_sets import named_set
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.model import PathsRelativeTo
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import NAMED_SET, Calibration, QuantizationRecipe, apportion
from llm_pipeline.config.ranges import range_at
from llm_pipeline.config.release import ReleaseConfig, ResolvedRelease
from llm_pipeline.config.target import Target

ModelT = TypeVar("ModelT", bound=BaseModel)
Location = tuple[int | str, ...]

_OUT_OF_RANGE = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}
_LONGEST_INPUT_SHOWN = 80
"""Characters of a wrong value that an error quotes; a whole section is not repeated."""


@dataclass(frozen=True)
class LoadedRelease:
    """A release config and everything it names.

    Attributes:
        path: The release config's file.
        configs_root: The directory that holds `releases/`, `targets/` and the others.
    """

    path: Path
    configs_root: Path
    config: ReleaseConfig
    release: ResolvedRelease
    deployment: Deployment

    @property
    def places(self) -> dict[str, str]:
        """Names of the deployment's places, by the target that goes there."""
        return {target: self.config.place_of(target) for target in self.config.targets}


def load_yaml(path: Path, model: type[ModelT], **fixed: str) -> ModelT:
    """Read one YAML file into a model; `fixed` are keys that come from the file's name.

    Raises:
        ConfigError: The file is missing, is not YAML, or does not fit the model; one line a mistake.
    """
    document = parse_yaml(_read(path), where=str(path))
    data, node = document.value, document.node
    if not isinstance(data, dict):
        raise ConfigError("expected keys and values", where=f"{path}:1")
    for key, value in fixed.items():
        if data.setdefault(key, value) != value:
            raise ConfigError(
                f"{key} is {data[key]!r} but the file is named {value!r}", where=f"{path}:{_line(node, (key,))}"
            )
    try:
        return model.model_validate(data, context=PathsRelativeTo(path.parent))
    except ValidationError as error:
        mistakes = [_mistake(path, node, model, details) for details in _told_once(model, error.errors())]
        raise ConfigError("\n".join(mistakes), hint=f"correct {path.name}; nothing was started") from error


def load_release(path: Path) -> LoadedRelease:
    """Read a release config and all that it names: recipes, targets, policy and deployment.

    Raises:
        ConfigError: Any of them is missing or wrong.
    """
    path = path.resolve()
    root = path.parent.parent
    config = load_yaml(path, ReleaseConfig, name=path.stem)
    deployment = load_deployment(_named(root, "deployments", config.deployment, path, "deployment"))
    release = ResolvedRelease(
        name=config.name,
        description=config.description,
        model=config.model,
        baseline=config.baseline,
        recipes=tuple(
            rung
            for name in config.recipes
            for rung in _load_recipe(_named(root, "quantization", name, path, "recipes"))
        ),
        targets=tuple(
            load_yaml(_named(root, "targets", name, path, "targets"), Target, name=name) for name in config.targets
        ),
        policy=load_yaml(_named(root, "policies", config.policy, path, "policy"), Policy, name=config.policy),
        evaluation=config.evaluation,
        workload=config.workload,
        approval=config.approval,
        drill=config.drill,
        concurrency=config.concurrency,
        ladder=config.ladder,
    )
    _check_data_files(path, root, release)
    _check_places(path, config, release, deployment)
    return LoadedRelease(path=path, configs_root=root, config=config, release=release, deployment=deployment)


def _load_recipe(path: Path) -> tuple[QuantizationRecipe, ...]:
    recipe = load_yaml(path, QuantizationRecipe, name=path.stem)
    with _errors_at(path, ("modelopt_recipe",)):
        check_modelopt_recipe(recipe)
    with _errors_at(path, ("kv_cache",)):
        check_kv_cache(recipe)
    return recipe.rungs()


def load_deployment(path: Path) -> Deployment:
    """Read a deployment; its relative paths are relative to its own file.

    Raises:
        ConfigError: It is missing or wrong.
    """
    path = path.resolve()
    deployment = load_yaml(path, Deployment, name=path.stem)
    store = deployment.store
    cache = None if store.directory else store.cache or f"{deployment.work_root}/cache"
    return deployment.model_copy(update={"store": store.model_copy(update={"cache": cache})})


def _read(path: Path) -> bytes:
    """The file's bytes, or one more than the bound, which the reader then refuses."""
    try:
        return read_plain_file(path, CONFIG_BOUNDS.bytes + 1)
    except FileNotFoundError as error:
        raise ConfigError("no such file", where=str(path), hint=_suggest_file(path)) from error


def _told_once(model: type[BaseModel], errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without what another one says already: a missing key that is misspelt, a list too short for its wrong items."""
    unknown = [details["loc"] for details in errors if details["type"] == "extra_forbidden"]
    told = {("missing", (*location[:-1], _nearest_key(model, location))) for location in unknown}
    told |= {("too_short", details["loc"][:-1]) for details in errors}
    return [details for details in errors if (details["type"], details["loc"]) not in told]


def _mistake(path: Path, node: yaml.Node | None, model: type[BaseModel], details: ErrorDetails) -> str:
    location = _without_kinds(node, details["loc"], missing=details["type"] == "missing")
    place = f"{path}:{_line(node, location)}"
    key = ".".join(str(part) for part in location) or "file"
    if details["type"] == "extra_forbidden":
        return f"{place}: unknown key {key}{_suggest_key(model, location)}"
    if details["type"] == "missing":
        return f"{place}: missing key {key}"
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] in _OUT_OF_RANGE and (allowed := range_at(model, details["loc"])):
        message = f"must be {allowed}"
    given = repr(details["input"])
    shown = f" (got {given})" if len(given) <= _LONGEST_INPUT_SHOWN else ""
    return f"{place}: {key}: {message}{shown}"


def _without_kinds(node: yaml.Node | None, location: Location, *, missing: bool) -> Location:
    """The keys of a location that the file has: a field of several kinds puts the kind into it."""
    keys: list[str | int] = []
    for number, part in enumerate(location):
        if isinstance(node, yaml.MappingNode):
            found = [value for key, value in node.value if key.value == str(part)]
            if found:
                node = found[0]
            elif not (missing and number == len(location) - 1):
                continue
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        keys.append(part)
    return tuple(keys)


def _line(node: yaml.Node | None, location: Location) -> int:
    """The line of the deepest part of a location that the file really has."""
    line = node.start_mark.line if node else 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
            if not found:
                break
            line, node = found[0][0].start_mark.line, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
    return line + 1


def _suggest_key(model: type[BaseModel], location: Location) -> str:
    if nearest := _nearest_key(model, location):
        return f": did you mean {nearest}?"
    return f": known keys are {', '.join(_known_keys(model, location))}"


def _nearest_key(model: type[BaseModel], location: Location) -> str:
    close = difflib.get_close_matches(str(location[-1]), _known_keys(model, location), n=1)
    return close[0] if close else ""


def _known_keys(model: type[BaseModel], location: Location) -> list[str]:
    """The keys that the model at a location has; numbers and free names in it are parts of lists and mappings."""
    for part in location[:-1]:
        if field := model.model_fields.get(str(part)):
            model = _model_within(field.annotation) or model
    return list(model.model_fields)


def _model_within(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_within, get_args(annotation))), None)


def _suggest_file(path: Path) -> str:
    there = sorted(found.stem for found in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    return f"{path.parent.name}/ has: {', '.join(there)}" if there else "check the path"


def _where(path: Path, location: Location) -> str:
    return f"{path}:{_line(parse_yaml(_read(path), where=str(path)).node, location)}"


@contextmanager
def _errors_at(path: Path, location: Location) -> Iterator[None]:
    """Give an error the place in the file that it is about."""
    try:
        yield
    except ConfigError as error:
        key = ".".join(part for part in location if isinstance(part, str))
        about = f"{error.where}: " if error.where else ""
        raise ConfigError(f"{key}: {about}{error.message}", where=_where(path, location), hint=error.hint) from error


def _named(root: Path, folder: str, name: str, source: Path, key: str) -> Path:
    path = root / folder / f"{name}.yaml"
    if not path.is_file():
        there = sorted(found.stem for found in (root / folder).glob("*.yaml"))
        raise ConfigError(
            f"{key}: there is no {folder}/{name}.yaml",
            where=_where(source, (key,)),
            hint=f"{folder}/ has: {', '.join(there) or 'nothing'}",
        )
    return path


def _check_data_files(path: Path, root: Path, release: ResolvedRelease) -> None:
    wanted: list[tuple[Path, Location, str]] = [(path, ("workload", "prompts"), release.workload.prompts)]
    if release.workload.trace:
        wanted.append((path, ("workload", "trace", "file"), release.workload.trace.file))
    if release.evaluation.task_directory:
        wanted.append((path, ("evaluation", "task_directory"), release.evaluation.task_directory))
    for source, location, name in wanted:
        _check_data_file(root, name, source, location)
    for recipe in release.recipes:
        if recipe.calibration:
            _check_calibration(root, root / "quantization" / f"{recipe.file_name}.yaml", recipe.calibration)


def _check_calibration(root: Path, path: Path, calibration: Calibration) -> None:
    for number, source in enumerate(calibration.sources):
        if source.dataset.startswith(NAMED_SET):
            with _errors_at(path, ("calibration", "sources", number)):
                named_set(source.dataset, chat=calibration.chat_template)
        else:
            _check_data_file(root, source.dataset, path, ("calibration", "sources", number))
    with _errors_at(path, ("calibration", "samples")):
        apportion(calibration)


def _check_data_file(root: Path, name: str, source: Path, location: Location) -> None:
    key = ".".join(part for part in location if isinstance(part, str))
    try:
        found = (root / name).resolve()
        if not found.is_relative_to(root):
            problem = f"{name} lies outside {root}"
        elif not found.exists():
            problem = f"{name} does not exist below {root}"
        elif location[-1] == "task_directory":
            problem = "" if found.is_dir() else f"{name} is not a directory"
        else:
            problem = problem_of_plain_file(found, DATA_FILE_BYTES)
            problem = problem and f"{name} {problem}"
    except (OSError, RuntimeError) as error:  # a name that is too long, a link to itself
        raise ConfigError(f"{key}: {name}: {error}", where=_where(source, location)) from error
    if problem:
        raise ConfigError(f"{key}: {problem}", where=_where(source, location))


def _check_places(path: Path, config: ReleaseConfig, release: ResolvedRelease, deployment: Deployment) -> None:
    for target in release.targets:
        place = config.place_of(target.name)
        if place not in deployment.places:
            key = "places" if target.name in config.places else "targets"
            named = place if place == target.name else f"{target.name} goes to {place}, which"
            raise ConfigError(
                f"{key}: {named} has no place in deployment {deployment.name}",
                where=_where(path, (key,)),
                hint=f"add places.{place} to deployments/{deployment.name}.yaml",
            )
        if target.environment not in deployment.environments:
            raise ConfigError(
                f"targets: {target.name} is built in environment {target.environment}, "
                f"which deployment {deployment.name} does not have",
                where=_where(path, ("targets",)),
                hint=f"deployments/{deployment.name}.yaml has: {', '.join(deployment.environments)}",
            )

"""Loading a release config with all that it names, and checking what its files promise to each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import DATA_FILE_BYTES, problem_of_plain_file
from llm_pipeline.catalog.named_sets import named_set
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.files import data_root, named_file, names_in
from llm_pipeline.config.loading import Location, errors_at, load_yaml, where_in
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import NAMED_SET, QuantizationRecipe
from llm_pipeline.config.release import ReleaseConfig, ReleaseSettings, ResolvedRelease
from llm_pipeline.config.target import Target

_NOTHING = Overrides()


@dataclass(frozen=True)
class ConfiguredRelease:
    """A release config and the deployment that it names: all that is needed to find its store and its places.

    Attributes:
        path: The release config's file.
    """

    path: Path
    config: ReleaseConfig
    deployment: Deployment

    @property
    def configs_root(self) -> Path:
        """The directory that holds `releases/`, `targets/` and the others."""
        return self.path.parent.parent

    @property
    def places(self) -> dict[str, str]:
        """Names of the deployment's places, by the target that goes there."""
        return {target: self.config.place_of(target) for target in self.config.targets}

    def file_of(self, folder: str, name: str) -> Path:
        """The file of something that the release config names: one's own, or the package's."""
        return named_file(self.configs_root, folder, name) or self.configs_root / folder / f"{name}.yaml"

    def data_file(self, name: str) -> Path:
        """A calibration file: one's own, or the package's."""
        return data_root(self.configs_root, name) / name


@dataclass(frozen=True)
class LoadedRelease(ConfiguredRelease):
    """A release config and everything it names, as one run has it.

    Attributes:
        overrides: What the run has otherwise than the file says.
    """

    release: ResolvedRelease
    overrides: Overrides = _NOTHING


def load_config(path: Path) -> ConfiguredRelease:
    """Read a release config and its deployment; its recipes, targets and policy are not looked at.

    Raises:
        ConfigError: Either is missing or wrong.
    """
    path = Path(os.path.realpath(path))  # which says nothing of a link to itself: that it cannot be read is told next
    config = load_yaml(path, ReleaseConfig)
    deployment = load_yaml(_named(path, "deployments", config.deployment, "deployment"), Deployment)
    return ConfiguredRelease(path, config, deployment)


def load_release(path: Path, overrides: Overrides = _NOTHING) -> LoadedRelease:
    """Read a release config and all that it names: recipes, targets, policy and deployment.

    Args:
        path: The release config.
        overrides: What this run is to have otherwise.

    Raises:
        ConfigError: Any of them is missing or wrong, or what is asked for is none of the config's.
    """
    written = load_config(path)
    overrides = overrides.effective(written.config)
    loaded = replace(written, config=overrides.applied(written.config))
    path, config = loaded.path, loaded.config
    files = [_named(path, "quantization", name, "recipes") for name in config.recipes]
    recipes = [load_yaml(file, QuantizationRecipe) for file in files]
    for file, recipe in zip(files, recipes, strict=True):
        _check_recipe(loaded.configs_root, file, recipe)
    release = ResolvedRelease(
        **{name: getattr(config, name) for name in ReleaseSettings.model_fields},
        recipes=tuple(rung for recipe in recipes for rung in recipe.rungs()),
        targets=tuple(load_yaml(_named(path, "targets", name, "targets"), Target) for name in config.targets),
        policy=load_yaml(_named(path, "policies", config.policy, "policy"), Policy),
    )
    _check_data_file(loaded.configs_root, config.workload.prompts, path, ("workload", "prompts"))
    if directory := config.evaluation.task_directory:
        _check_data_file(loaded.configs_root, directory, path, ("evaluation", "task_directory"))
    _check_places(loaded, release.targets)
    return LoadedRelease(path, config, loaded.deployment, release, overrides)


def _named(config_path: Path, folder: str, name: str, key: str) -> Path:
    """The file that a key of the release config names."""
    root = config_path.parent.parent
    path = named_file(root, folder, name)
    if path is None:
        there = names_in(root, folder)
        hint = f"{folder}/ has: {', '.join(there) or 'nothing'}"
        raise ConfigError(f"{key}: there is no {folder}/{name}.yaml", where=where_in(config_path, (key,)), hint=hint)
    return path


def _check_recipe(root: Path, path: Path, recipe: QuantizationRecipe) -> None:
    calibration = recipe.calibration
    if calibration is None:
        return
    for number, source in enumerate(calibration.sources):
        if source.startswith(NAMED_SET):
            with errors_at(path, ("calibration", "sources", number)):
                named_set(source, chat=calibration.chat_template)
        else:
            home = data_root(root, source)
            _check_data_file(home, source, path, ("calibration", "sources", number))


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
        raise ConfigError(f"{key}: {name}: {error}", where=where_in(source, location)) from error
    if problem:
        raise ConfigError(f"{key}: {problem}", where=where_in(source, location))


def _check_places(loaded: ConfiguredRelease, targets: Sequence[Target]) -> None:
    path, config, deployment = loaded.path, loaded.config, loaded.deployment
    for target in targets:
        place = config.place_of(target.name)
        if place not in deployment.places:
            key = "places" if target.name in config.places else "targets"
            named = place if place == target.name else f"{target.name} goes to {place}, which"
            raise ConfigError(
                f"{key}: {named} has no place in deployment {deployment.name}",
                where=where_in(path, (key,)),
                hint=f"add places.{place} to deployments/{deployment.name}.yaml",
            )
        if target.environment not in deployment.environments:
            raise ConfigError(
                f"targets: {target.name} is built in environment {target.environment}, "
                f"which deployment {deployment.name} does not have",
                where=where_in(path, ("targets",)),
                hint=f"deployments/{deployment.name}.yaml has: {', '.join(deployment.environments)}",
            )

"""Loading a release config with all that it names, and checking what its files promise to each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.plain_files import DATA_FILE_BYTES, problem_of_plain_file
from llm_pipeline.catalog.modelopt_recipes import check_kv_cache, check_modelopt_recipe
from llm_pipeline.catalog.named_sets import named_set
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import Location, errors_at, load_deployment, load_yaml, where_in
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import NAMED_SET, Calibration, QuantizationRecipe, apportion
from llm_pipeline.config.release import ReleaseConfig, ResolvedRelease
from llm_pipeline.config.target import Target


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
    with errors_at(path, ("modelopt_recipe",)):
        check_modelopt_recipe(recipe)
    with errors_at(path, ("kv_cache",)):
        check_kv_cache(recipe)
    return recipe.rungs()


def _named(root: Path, folder: str, name: str, source: Path, key: str) -> Path:
    path = root / folder / f"{name}.yaml"
    if not path.is_file():
        there = sorted(found.stem for found in (root / folder).glob("*.yaml"))
        raise ConfigError(
            f"{key}: there is no {folder}/{name}.yaml",
            where=where_in(source, (key,)),
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
            with errors_at(path, ("calibration", "sources", number)):
                named_set(source.dataset, chat=calibration.chat_template)
        else:
            _check_data_file(root, source.dataset, path, ("calibration", "sources", number))
    with errors_at(path, ("calibration", "samples")):
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
        raise ConfigError(f"{key}: {name}: {error}", where=where_in(source, location)) from error
    if problem:
        raise ConfigError(f"{key}: {problem}", where=where_in(source, location))


def _check_places(path: Path, config: ReleaseConfig, release: ResolvedRelease, deployment: Deployment) -> None:
    for target in release.targets:
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

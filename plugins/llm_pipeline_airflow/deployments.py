"""The deployments that release configs name: some DAGs are made once for each of them, not for each release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.loading import load_release
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.settings import release_configs


@dataclass(frozen=True)
class UsedDeployment:
    """A deployment and what its release configs put there.

    Attributes:
        path: Its file.
        models: Ids of the models, sorted.
        targets: Names of the places that their targets go to, in the order of the deployment.
    """

    path: Path
    deployment: Deployment
    models: tuple[str, ...]
    targets: tuple[str, ...]


def used_deployments(folders: tuple[Path, ...]) -> list[UsedDeployment]:
    """The deployments of all release configs that are right; mistakes are reported by `check_release_configs`."""
    found: dict[Path, Deployment] = {}
    models: dict[Path, set[str]] = {}
    targets: dict[Path, set[str]] = {}
    for config in release_configs(folders):
        with contained(config.name):
            loaded = load_release(config)
            file = loaded.file_of("deployments", loaded.deployment.name)
            found.setdefault(file, loaded.deployment)
            models.setdefault(file, set()).add(loaded.config.model.id)
            targets.setdefault(file, set()).update(loaded.places.values())
    return [
        UsedDeployment(
            path=file,
            deployment=deployment,
            models=tuple(sorted(models[file])),
            targets=tuple(name for name in deployment.places if name in targets[file]),
        )
        for file, deployment in found.items()
    ]


def deployment_dags(prefix: str, make: Callable[[UsedDeployment], DAG], folders: tuple[Path, ...]) -> dict[str, DAG]:
    """A DAG for each deployment that one can be made for, by DAG id; a worker makes only the one it runs.

    Args:
        prefix: What their DAG ids begin with.
        make: Makes the DAG of one deployment.
        folders: Where the release configs are; of two deployments of one name, the first counts.
    """
    wanted = get_parsing_context().dag_id
    if wanted is not None and not wanted.startswith(prefix):
        return {}
    made: dict[str, DAG] = {}
    for used in used_deployments(folders):
        dag_id = f"{prefix}{used.deployment.name}"
        if wanted in (None, dag_id) and dag_id not in made:
            with contained(dag_id):
                made[dag_id] = make(used)
    return made

"""The deployments that release configs name: some DAGs are made once for each of them, not for each release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from llm_pipeline.config.deployment import Deployment
from llm_pipeline.release.loading import load_release
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.runs import releases_directory


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


def used_deployments(directory: Path) -> list[UsedDeployment]:
    """The deployments of all release configs that are right; mistakes are reported by `check_release_configs`."""
    found: dict[Path, Deployment] = {}
    models: dict[Path, set[str]] = {}
    targets: dict[Path, set[str]] = {}
    for config in sorted(directory.glob("*.yaml")):
        with contained(config.name):
            loaded = load_release(config)
            file = loaded.configs_root / "deployments" / f"{loaded.deployment.name}.yaml"
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


def deployment_dags(
    prefix: str, make: Callable[[UsedDeployment], DAG], directory: Path | None = None
) -> dict[str, DAG]:
    """A DAG for each deployment that one can be made for, by DAG id; a worker makes only the one it runs.

    Args:
        prefix: What their DAG ids begin with.
        make: Makes the DAG of one deployment.
        directory: Where the release configs are; None for the installation's own.
    """
    wanted = get_parsing_context().dag_id
    if wanted is not None and not wanted.startswith(prefix):
        return {}
    made: dict[str, DAG] = {}
    for used in used_deployments(directory or releases_directory()):
        dag_id = f"{prefix}{used.deployment.name}"
        if wanted in (None, dag_id):
            with contained(dag_id):
                made[dag_id] = make(used)
    return made

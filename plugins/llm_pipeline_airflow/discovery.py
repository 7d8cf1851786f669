"""Finding the release configs, and keeping one that is broken from taking the others along.

Airflow hides every DAG of a file that has an import error. So `dags/releases.py` leaves broken configs out, and
`dags/release_config_errors.py`, which holds no DAG, is where their mistakes show as an import error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from llm_pipeline.base.collector import sparing
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.loading import each_file_read_once
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.deployment_dags import KINDS, deployment_dag, used_deployments
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.settings import dag_id_of, release_configs, release_folders, require_folders


def all_dags(dag_file: str) -> dict[str, DAG]:
    """Every DAG of the release configs that a DAG file is for: releases, and those of their deployments.

    Args:
        dag_file: Its `__file__`; the configs are where `[llm_pipeline] releases` says, beside it or above.
    """
    return dags_of(release_folders(dag_file))


@each_file_read_once()
@sparing()
def dags_of(folders: tuple[Path, ...]) -> dict[str, DAG]:
    """The DAGs that can be made of the release configs in folders, by DAG id; a worker makes only the one it runs.

    Two configs, or deployments, of one name make the DAGs of the first; `check_release_configs` tells of the other.
    """
    wanted = get_parsing_context().dag_id
    made: dict[str, DAG] = {}
    for _, dag_id, make in _makers(folders):
        if wanted in (None, dag_id) and dag_id not in made:
            with contained(f"the DAG {dag_id}"):  # check_release_configs reports what is wrong
                made[dag_id] = make()
        if wanted == dag_id:
            break
    return made


@each_file_read_once()
@sparing()
def check_release_configs(folders: tuple[Path, ...]) -> None:
    """Refuse if the DAG of any release config, or of a deployment that one names, cannot be made.

    Raises:
        ConfigError: The mistakes of all of them, each with its file and line.
    """
    require_folders(folders)
    if mistakes := [*_same_names(folders), *_mistakes(folders)]:
        raise ConfigError("\n".join(mistakes), hint="correct them; the DAGs of the other release configs run on")


def _makers(folders: tuple[Path, ...]) -> Iterator[tuple[Path, str, Callable[[], DAG]]]:
    """Of every DAG: the file that it is made from, its id, and what makes it."""
    for path in release_configs(folders):
        yield path, dag_id_of(path), partial(release_dag, path)
    for used in used_deployments(folders):
        for kind in KINDS:
            yield used.path, f"{kind}__{used.deployment.name}", partial(deployment_dag, kind, used)


def _same_names(folders: tuple[Path, ...]) -> Iterator[str]:
    """One line for each file whose DAG would have the id of another one's."""
    files = {
        "release configs": release_configs(folders),
        "deployments": [one.path for one in used_deployments(folders)],
    }
    for kind, paths in files.items():
        first: dict[str, Path] = {}
        for path in paths:
            if (other := first.setdefault(path.stem, path)) != path:
                yield f"{path}: two {kind} are named {path.stem}, and the DAGs are those of {other}: rename one of them"


def _mistakes(folders: tuple[Path, ...]) -> Iterator[str]:
    """One line for each file that a DAG cannot be made from."""
    for path, dag_id, make in _makers(folders):
        with contained(f"the DAG {dag_id}") as faults:
            make()
        yield from (f"{path.name}: {fault}" for fault in faults)

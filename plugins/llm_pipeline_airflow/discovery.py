"""Finding the release configs, and keeping one that is broken from taking the others along.

Airflow hides every DAG of a file that has an import error. So `dags/releases.py` leaves broken configs out, and
`dags/release_config_errors.py`, which holds no DAG, is where their mistakes show as an import error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from llm_pipeline.base.errors import ConfigError
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.deployments import used_deployments
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.guard_dag import guard_dag
from llm_pipeline_airflow.retention_dag import retention_dag
from llm_pipeline_airflow.rollback_dag import rollback_dag
from llm_pipeline_airflow.runs import dag_id_of, releases_directory


def release_dags(directory: Path | None = None) -> dict[str, DAG]:
    """The DAGs of all release configs that are right, by DAG id; a worker makes only the one it runs."""
    wanted = get_parsing_context().dag_id
    found: dict[str, DAG] = {}
    for path in sorted((directory or releases_directory()).glob("*.yaml")):
        dag_id = dag_id_of(path)
        if wanted in (None, dag_id):
            with contained(f"the DAG of {path.name}"):  # check_release_configs reports what is wrong
                found[dag_id] = release_dag(path)
    return found


def check_release_configs(directory: Path | None = None) -> None:
    """Refuse if the DAG of any release config, or of a deployment that one names, cannot be made.

    Raises:
        ConfigError: The mistakes of all of them, each with its file and line.
    """
    directory = directory or releases_directory()
    if not directory.is_dir():
        raise ConfigError("there is no such directory of release configs", where=str(directory))
    if mistakes := list(_mistakes(directory)):
        raise ConfigError("\n".join(mistakes), hint="correct them; the DAGs of the other release configs run on")


def _mistakes(directory: Path) -> Iterator[str]:
    """One line for each file that a DAG cannot be made from."""
    for path in sorted(directory.glob("*.yaml")):
        with contained(f"the DAG of {path.name}") as faults:
            release_dag(path)
        yield from (f"{path.name}: {fault}" for fault in faults)
    for used in used_deployments(directory):
        for make in (guard_dag, retention_dag, rollback_dag):
            with contained(f"{make.__name__} of {used.path.name}") as faults:
                make(used)
            yield from (f"{used.path.name}: {fault}" for fault in faults)

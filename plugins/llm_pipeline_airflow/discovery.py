"""Finding the release configs, and keeping one that is broken from taking the others along.

Airflow hides every DAG of a file that has an import error. So `dags/releases.py` leaves broken configs out, and
`dags/release_config_errors.py`, which holds no DAG, is where their mistakes show as an import error.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from llm_pipeline.config.loading import load_release
from llm_pipeline.errors import ConfigError, PipelineError
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.runs import dag_id_of, releases_directory
from llm_pipeline_airflow.watch import release_schedule


def release_dags(directory: Path | None = None) -> dict[str, DAG]:
    """The DAGs of all release configs that are right, by DAG id; a worker makes only the one it runs."""
    wanted = get_parsing_context().dag_id
    found = {}
    for path in sorted((directory or releases_directory()).glob("*.yaml")):
        dag_id = dag_id_of(path)
        if wanted in (None, dag_id):
            with contextlib.suppress(PipelineError):  # reported by check_release_configs
                found[dag_id] = release_dag(path)
    return found


def check_release_configs(directory: Path | None = None) -> None:
    """Refuse if any release config is broken.

    Raises:
        ConfigError: The mistakes of all of them, each with its file and line.
    """
    directory = directory or releases_directory()
    if not directory.is_dir():
        raise ConfigError("there is no such directory of release configs", where=str(directory))
    mistakes = [mistake for path in sorted(directory.glob("*.yaml")) if (mistake := _mistake(path))]
    if mistakes:
        raise ConfigError("\n".join(mistakes), hint="correct them; the DAGs of the other release configs run on")


def _mistake(path: Path) -> str | None:
    try:
        release_schedule(load_release(path))
    except PipelineError as error:
        return f"{path.name}: {error}"
    return None

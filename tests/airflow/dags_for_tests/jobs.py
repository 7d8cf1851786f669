"""DAGs of a test's Airflow: stages in containers and in pods, one task each, that do what their script says."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG
from llm_pipeline_airflow.operators import StageOperator

from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.loading import load_release


class JobOperator(StageOperator):
    """A stage that needs no release before it."""

    def request(self, context):  # noqa: ARG002
        deployment = load_release(Path(self.config_path)).deployment
        fields = {"store": deployment.store, "work_root": deployment.work_root}
        return StageRequest(
            release_id="tiny-01234567-00000000", stage="report", subject=self.subject, config={}, **fields
        )


def jobs(dag_id: str, names: str) -> DAG:
    """A DAG with a task for each name; `overdue` may take 30 s."""
    config = Path(os.environ["JOBS_PROJECTS"]) / dag_id / "configs/releases/tiny.yaml"
    with DAG(dag_id, schedule=None, default_args={"retries": 3, "retry_delay": timedelta(seconds=1)}) as dag:
        for name in names.split():
            limits = {"execution_timeout": timedelta(seconds=30), "retries": 0} if name == "overdue" else {}
            JobOperator(task_id=name, stage="report", subject=name, config_path=str(config), **limits)
    return dag


containers = jobs("containers", "one two three marked cleared overdue")
pods = jobs("pods", "one two marked")

"""DAGs of a test's Airflow: stages in containers, one task each, that do what their script says."""

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


config = Path(os.environ["JOBS_PROJECTS"]) / "containers/configs/releases/tiny.yaml"
with DAG("containers", schedule=None, default_args={"retries": 3, "retry_delay": timedelta(seconds=1)}) as dag:
    for name in ("kept", "marked", "cleared"):
        JobOperator(task_id=name, stage="report", subject=name, config_path=str(config))

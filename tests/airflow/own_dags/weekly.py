"""A DAG of one's own with a release in it: data are refreshed before, and what went live is announced after."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, task
from llm_pipeline_airflow.assets import live_model
from llm_pipeline_airflow.dag_factory import ReleaseTaskGroup


def page_somebody(context) -> None:
    """What the team calls when a task fails, beside what a deployment's `notifications:` say."""


with DAG("weekly", schedule=None, tags=["mine"], params={"note": "mine"}, max_active_runs=1) as weekly:

    @task
    def refresh() -> None:
        """Make the data anew."""

    @task
    def announce() -> None:
        """Say what went live."""

    config = Path(os.environ["OWN_RELEASE"])
    refresh() >> ReleaseTaskGroup(config, default_args={"on_failure_callback": page_somebody}) >> announce()


with DAG("went_live", schedule=live_model("here", "demo/tiny", "cpu-a")):

    @task
    def switch_clients() -> None:
        """Runs whenever the model went live at the place, or came back there."""

    switch_clients()

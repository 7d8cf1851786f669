"""Buttons below a task's details."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

REPORT_ROUTE = "release-report"
DAG_PREFIX = "release__"


class ReleaseReportLink(BaseOperatorLink):
    """Leads from a task to the report of its release."""

    @property
    def name(self) -> str:
        """The button's label."""
        return "Release report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's signature
        """The report's tab on the run's page, relative to the `<base>` of Airflow's UI: it may be below a path."""
        return report_page(ti_key.dag_id, ti_key.run_id)


def report_page(dag_id: str, run_id: str) -> str:
    """The report's tab on a run's page, relative to the `<base>` of Airflow's UI."""
    return f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/plugin/{REPORT_ROUTE}"

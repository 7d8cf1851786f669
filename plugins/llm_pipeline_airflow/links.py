"""Pages about a run: where they are, and the buttons below a task's details that lead to them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
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
    return f"{_run_page(dag_id, run_id)}/plugin/{REPORT_ROUTE}"


def page_of(context: Context, *, with_report: bool = True) -> str:
    """The page of a DAG run for people outside Airflow; empty where `[api] base_url` does not say where Airflow is."""
    ti, base = context.get("ti"), conf.get("api", "base_url", fallback="") or ""
    if ti is None or not base:
        return ""
    return f"{base.rstrip('/')}/{(report_page if with_report else _run_page)(ti.dag_id, ti.run_id)}"


def _run_page(dag_id: str, run_id: str) -> str:
    return f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"

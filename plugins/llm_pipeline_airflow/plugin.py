"""The plugin: a release's report beside its run, and a page of all releases.

Every Airflow process loads plugins, workers at each task. So this module imports next to nothing: the web
application is imported by the API server, with its first request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from llm_pipeline_airflow import ended
from llm_pipeline_airflow.links import REPORT_ROUTE, ReleaseReportLink

URL_PREFIX = "/llm-pipeline"
_PAGES = URL_PREFIX.removeprefix("/")
"""Relative to the `<base>` of Airflow's UI, so that the views are found below any path of `[api] base_url`."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def web_application(scope: Scope, receive: Receive, send: Send) -> None:
    """The pages, as an ASGI application."""
    from llm_pipeline_airflow.web import app

    await app(scope, receive, send)


class LlmPipelinePlugin(AirflowPlugin):
    """What Airflow registers; read once by each of its processes."""

    name = "llm_pipeline"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - as Airflow declares it
        {"app": web_application, "url_prefix": URL_PREFIX, "name": "LLM releases"}
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Release report",
            "href": f"{_PAGES}/dags/{{DAG_ID}}/runs/{{RUN_ID}}/report",
            "destination": "dag_run",
            "url_route": REPORT_ROUTE,
        },
        {
            "name": "Releases",
            "href": f"{_PAGES}/releases",
            "destination": "nav",
            "category": "browse",
            "url_route": "llm-releases",
        },
    ]
    operator_extra_links: list[Any] = [ReleaseReportLink()]  # noqa: RUF012
    listeners: list[Any] = [ended]  # noqa: RUF012

"""Pages for people inside Airflow's UI: a run's release report, the list of releases and what is watched.

Plugin routes have no authentication of their own in Airflow 3.3, so every route here asks for it; only the hub's
webhook is called without a user, and asks for a secret. Reports are served as they were stored, under a policy that
lets them run no script and load nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse

from llm_pipeline.base.errors import ConfigError, InternalError, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.untrusted_text import html
from llm_pipeline.inspection.listing import ReleaseRow, release_rows
from llm_pipeline.inspection.release_artifacts import DamagedRow
from llm_pipeline.release.loading import load_config
from llm_pipeline.release.watch_record import read_status
from llm_pipeline.stages.report import report_name
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.guarded_routes import guarded_route
from llm_pipeline_airflow.runs import config_path_of, dag_id_of, release_of_run, releases_directory, store_of
from llm_pipeline_airflow.webhook import router as webhooks

log = get_logger(__name__)

_NOT_LOOKED = "the watch has not looked yet: it starts once the DAG is unpaused and a triggerer runs"


@dataclass(frozen=True)
class WatchSummary:
    """One release config with a watch.

    Attributes:
        commit: What the revision named last; empty before the first look.
        words: The last decision.
        since: When it was decided.
        checked_at: A time at which it still held; the triggerer writes it every quarter of an hour.
    """

    config: str
    model: str
    revision: str
    commit: str
    words: str
    since: datetime | None
    checked_at: datetime | None


def watch_of(config_path: Path) -> WatchSummary | None:
    """What the watch of a release config decided last; None for a config without one.

    Raises:
        ConfigError: The release config is wrong.
        IntegrityError: What the watch wrote cannot be understood.
    """
    loaded = load_config(config_path)
    if loaded.config.watch is None:
        return None
    status = read_status(open_store(loaded.deployment.store), loaded.config.name)
    return WatchSummary(
        config=loaded.config.name,
        model=loaded.config.model.id,
        revision=loaded.config.model.revision,
        commit=status.commit if status else "",
        words=status.words if status else _NOT_LOOKED,
        since=status.since if status else None,
        checked_at=status.checked_at if status else None,
    )


def releases_of(store: ArtifactStore, config_name: str) -> list[ReleaseRow]:
    """The releases made from one release config, newest first; the log names what cannot be read."""
    rows = release_rows(store)
    for row in rows:
        if isinstance(row, DamagedRow):
            log.warning(str(row))
    return [row for row in rows if isinstance(row, ReleaseRow) and row.config == config_name]


app = FastAPI(title="LLM releases", docs_url=None, redoc_url=None, openapi_url=None)
app.router.route_class = guarded_route(lambda error: _failed(error))  # noqa: PLW0108 - it is defined below
app.include_router(webhooks)

_SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem;color:#1b2430;background:#fff}"
    "table{border-collapse:collapse}th,td{padding:.4rem .9rem;border-bottom:1px solid #d8dee6;text-align:left}"
    ".GO{color:#12753b}.NO_GO{color:#b3261e}.INCONCLUSIVE,.ANOMALOUS{color:#8a5a00}code{font-size:13px}"
)


@app.get(
    "/dags/{dag_id}/runs/{run_id}/report",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
)
def run_report(dag_id: str, run_id: str) -> HTMLResponse:
    """The report of the release that a run works on."""
    try:
        store = store_of(config_path_of(dag_id))
        release_id = release_of_run(store, dag_id, run_id)
    except ConfigError as error:
        return _message(404, "No report", str(error))
    if release_id is None:
        return _message(404, "No report yet", "The run's first stage has not named its release yet.")
    try:
        report = store.read_file(report_name(release_id))
    except FileNotFoundError:
        return _message(404, "No report yet", f"Release {release_id} is running; its report is written at the end.")
    return HTMLResponse(report.decode(errors="replace"), headers=_SECURITY_HEADERS)


@app.get("/releases")
def releases(request: Request, user: GetUserDep) -> HTMLResponse:
    """What is watched, and all releases, of the DAGs that the user may read."""
    del request
    found: dict[str, ReleaseRow] = {}
    watches: list[WatchSummary] = []
    problems: list[str] = []
    for path in _readable_configs(user):
        with contained(f"the releases of {path.name}") as no_rows:
            found |= {row.release_id: row for row in releases_of(store_of(path), path.stem)}
        with contained(f"the watch of {path.name}") as no_watch:
            watches += [watch] if (watch := watch_of(path)) else []
        problems += {f"{path.name}: {fault}" for fault in (*no_rows, *no_watch)}
    summaries = sorted(found.values(), key=lambda one: one.resolved_at, reverse=True)
    return _page(200, "Releases", _releases_table(summaries) + _watches_table(watches) + _problem_list(problems))


def _readable_configs(user: Any) -> list[Path]:
    manager = get_auth_manager()
    return [
        path
        for path in sorted(releases_directory().glob("*.yaml"))
        if manager.is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id_of(path)), user=user
        )
    ]


def _releases_table(summaries: Iterable[ReleaseRow]) -> str:
    rows = "".join(
        f"<tr><td><code>{html(one.release_id)}</code></td><td>{html(one.model)}</td>"
        f"<td><code>{html(one.commit[:12])}</code></td><td>{_time(one.resolved_at)}</td>"
        f'<td class="{html(one.verdict)}">{html(one.verdict)}</td><td>{html(one.reached)}</td></tr>'
        for one in summaries
    )
    if not rows:
        return "<p>No release yet: trigger a DAG whose name begins with <code>release__</code>.</p>"
    return _table(("release", "model", "commit", "created", "verdict", "last stage"), rows)


def _watches_table(watches: Iterable[WatchSummary]) -> str:
    rows = "".join(
        f"<tr><td>{html(one.config)}</td><td>{html(one.model)}</td><td><code>{html(one.revision)}</code></td>"
        f"<td><code>{html(one.commit[:12])}</code></td><td>{html(one.words)}</td>"
        f"<td>{_time(one.since)}</td><td>{_time(one.checked_at)}</td></tr>"
        for one in watches
    )
    heads = ("release config", "model", "revision", "commit seen", "decision", "since", "checked")
    return f"<h2>Watched on the hub</h2>{_table(heads, rows)}" if rows else ""


def _problem_list(problems: Iterable[str]) -> str:
    items = "".join(f"<li>{html(problem)}</li>" for problem in problems)
    return f"<h2>Not shown</h2><ul>{items}</ul>" if items else ""


def _table(heads: Iterable[str], rows: str) -> str:
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M UTC}" if at is not None else ""


def _failed(error: PipelineError) -> HTMLResponse:
    """For what a page could not be made of; an error of ours is written for people, any other is for the log."""
    if isinstance(error, InternalError):
        return _message(500, "Internal error", "See the API server's log.")
    return _message(503 if isinstance(error, Transient) else 500, "Not available", str(error))


def _message(status: int, title: str, text: str) -> HTMLResponse:
    return _page(status, title, f"<p>{html(text)}</p>")


def _page(status: int, title: str, body: str) -> HTMLResponse:
    document = (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html(title)}</title>"
        f"<style>{_STYLE}</style></head><body><h1>{html(title)}</h1>{body}</body></html>"
    )
    return HTMLResponse(document, status_code=status, headers=_SECURITY_HEADERS)

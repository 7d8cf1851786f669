"""Pages for people inside Airflow's UI: a run's release report, the list of releases and what is watched.

Plugin routes have no authentication of their own in Airflow 3.3, so every route here asks for it; only the hub's
webhook is called without a user, and asks for a secret. Reports are served as they were stored, under a policy that
lets them run no script and load nothing from anywhere. What cannot be read is said with its reason and status 503: a
page never takes a store that does not answer for an empty one.
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

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.untrusted_text import html
from llm_pipeline.config.store import StoreConfig
from llm_pipeline.inspection.listing import ReleaseRow
from llm_pipeline.inspection.release_index import Releases, read_releases
from llm_pipeline.release.loading import ConfiguredRelease, load_config
from llm_pipeline.release.record import report_name
from llm_pipeline.release.watch_record import read_status
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.guarded_routes import guarded_route
from llm_pipeline_airflow.html_page import SECURITY_HEADERS, failed, message, page, table, time
from llm_pipeline_airflow.runs import config_path_of, dag_id_of, release_of_run, store_to_read
from llm_pipeline_airflow.settings import release_configs
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


def watch_of(loaded: ConfiguredRelease) -> WatchSummary | None:
    """What the watch of a release config decided last; None for a config without one.

    Raises:
        IntegrityError: What the watch wrote cannot be understood.
        Transient: The store cannot be read.
    """
    if loaded.config.watch is None:
        return None
    status = read_status(store_to_read(loaded.deployment.store), loaded.config.name)
    return WatchSummary(
        config=loaded.config.name,
        model=loaded.config.model.id,
        revision=loaded.config.model.revision,
        commit=status.commit if status else "",
        words=status.words if status else _NOT_LOOKED,
        since=status.since if status else None,
        checked_at=status.checked_at if status else None,
    )


app = FastAPI(title="LLM releases", docs_url=None, redoc_url=None, openapi_url=None)
app.router.route_class = guarded_route(failed)
app.include_router(webhooks)


@app.get(
    "/dags/{dag_id}/runs/{run_id}/report",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
)
def run_report(dag_id: str, run_id: str) -> HTMLResponse:
    """The report of the release that a run works on."""
    try:
        config = config_path_of(dag_id)
    except ConfigError as error:
        return message(404, "No report", str(error))
    store = store_to_read(load_config(config).deployment.store)
    release_id = release_of_run(store, dag_id, run_id)
    if release_id is None:
        return message(404, "No report yet", "The run's first stage has not named its release yet.")
    try:
        report = store.read_file(report_name(release_id))
    except FileNotFoundError:
        return message(404, "No report yet", f"Release {release_id} is running; its report is written at the end.")
    return HTMLResponse(report.decode(errors="replace"), headers=SECURITY_HEADERS)


@app.get("/releases")
def releases(request: Request, user: GetUserDep) -> HTMLResponse:
    """What is watched, and all releases, of the DAGs that the user may read; 503 if a store cannot be read."""
    del request
    readable = _readable_configs(user)
    configs: dict[str, ConfiguredRelease] = {}
    wrong: list[str] = []
    for path in readable:
        with contained(path.name) as faults:
            loaded = load_config(path)
            configs[loaded.config.name] = loaded
        wrong += [f"{path.name}: {fault}" for fault in faults]
    stores = {loaded.deployment.store.uri: loaded.deployment.store for loaded in configs.values()}
    rows: list[ReleaseRow] = []
    unread: list[str] = []
    for uri, settings in stores.items():
        with contained(f"reading {uri}") as faults:
            found = releases_in(settings)
            rows += [one.row for one in found.whole if one.row.config in configs]
            if found.damaged:
                which = "`llm-pipeline ls releases` names them"
                unread.append(f"{uri}: {len(found.damaged)} documents cannot be read; {which}")
        unread += [f"{uri}: {fault}" for fault in faults]
    watches: list[WatchSummary] = []
    for name, loaded in configs.items():
        with contained(f"the watch of {name}") as faults:
            watches += [watch] if (watch := watch_of(loaded)) else []
        unread += [str(fault) for fault in faults]
    rows.sort(key=lambda one: one.resolved_at, reverse=True)
    body = _problem_list("Stores that cannot be read", unread) + _releases_table(rows) + _watches_table(watches)
    if not rows and not unread:
        body += _NONE_YET if readable else _NONE_READABLE
    return page(503 if unread else 200, "Releases", body + _problem_list("Release configs with a mistake", wrong))


_NONE_YET = "<p>No release yet: trigger a DAG whose name begins with <code>release__</code>.</p>"
_NONE_READABLE = "<p>You may read no DAG whose name begins with <code>release__</code>.</p>"


def releases_in(settings: StoreConfig) -> Releases:
    """The releases in a store, and what cannot be read, which the log names.

    Raises:
        Transient: The store cannot be read.
    """
    found = read_releases(store_to_read(settings))
    for row in found.damaged:
        log.warning(str(row))
    return found


def _readable_configs(user: Any) -> list[Path]:
    manager = get_auth_manager()
    return [
        path
        for path in release_configs()
        if manager.is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id_of(path)), user=user
        )
    ]


def _releases_table(summaries: Iterable[ReleaseRow]) -> str:
    rows = (
        f"<tr><td><code>{html(one.release_id)}</code></td><td>{html(one.model)}</td>"
        f"<td><code>{html(one.commit[:12])}</code></td><td>{time(one.resolved_at)}</td>"
        f'<td class="{html(one.verdict)}">{html(one.verdict)}</td><td>{html(one.reached)}</td></tr>'
        for one in summaries
    )
    return table("All releases", ("release", "model", "commit", "created", "verdict", "last stage"), rows)


def _watches_table(watches: Iterable[WatchSummary]) -> str:
    rows = (
        f"<tr><td>{html(one.config)}</td><td>{html(one.model)}</td><td><code>{html(one.revision)}</code></td>"
        f"<td><code>{html(one.commit[:12])}</code></td><td>{html(one.words)}</td>"
        f"<td>{time(one.since)}</td><td>{time(one.checked_at)}</td></tr>"
        for one in watches
    )
    heads = ("release config", "model", "revision", "commit seen", "decision", "since", "checked")
    return table("Watched on the hub", heads, rows)


def _problem_list(title: str, problems: Iterable[str]) -> str:
    items = "".join(f"<li>{html(problem)}</li>" for problem in dict.fromkeys(problems))
    return f'<h2>{title}</h2><ul class="problem">{items}</ul>' if items else ""

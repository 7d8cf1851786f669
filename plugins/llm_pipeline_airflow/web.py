"""Pages for people inside Airflow's UI: a run's release report, the list of releases and what is watched.

Plugin routes have no authentication of their own in Airflow 3.3, so every route here asks for it. Reports are served
as they were stored, under a policy that lets them run no script and load nothing from anywhere. What cannot be read is
said with its reason and status 503: a page never takes a store that does not answer for an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from ssl import create_default_context
from typing import Annotated, Any

import httpx
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagTag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, Query
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.inspection.comparison import compare
from llm_pipeline.inspection.release_artifacts import DamagedRow
from llm_pipeline.inspection.release_index import INDEXED, IndexedRelease, read_releases
from llm_pipeline.release.loading import ConfiguredRelease, load_config
from llm_pipeline.release.record import read_release_record, report_name
from llm_pipeline.release.watch_record import WatchStatus, read_status
from llm_pipeline.store import ArtifactStore
from llm_pipeline.store.references import PointerReference, ReleaseReference, readable_pointers
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.pages import (
    SECURITY_HEADERS,
    GuardedRoute,
    Placed,
    ReleaseFilter,
    filter_form,
    message,
    page,
    problem_list,
    releases_table,
    serving_table,
    side_by_side,
    watches_table,
)
from llm_pipeline_airflow.runs import config_path_of, dag_id_of, release_of_run, store_to_read
from llm_pipeline_airflow.settings import release_configs

log = get_logger(__name__)

_ASKED_AT_ONCE = 8
_PATIENCE_SECONDS = 2.0

app = FastAPI(title="LLM releases", docs_url=None, redoc_url=None, openapi_url=None)
app.router.route_class = GuardedRoute


@app.get(
    "/dags/{dag_id}/runs/{run_id}/report",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
)
def run_report(dag_id: str, run_id: str) -> HTMLResponse:
    """The report of the release that a run works on."""
    try:
        configs = [config_path_of(dag_id)]
    except ConfigError as error:
        configs = _composed(dag_id)
        if not configs:
            return message(404, "No report", str(error))
    for config in configs:
        store = store_to_read(config_with_secrets(config).deployment.store)
        if (release_id := release_of_run(store, dag_id, run_id)) is not None:
            return _report(store, release_id)
    return message(404, "No report yet", "The run's first stage has not named its release yet.")


@app.get(
    "/dags/{dag_id}/releases/{release_id}/report",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
)
def release_report(dag_id: str, release_id: str) -> HTMLResponse:
    """The report of a release of a DAG's release config."""
    try:
        loaded = config_with_secrets(config_path_of(dag_id))
        store = store_to_read(loaded.deployment.store)
        config = read_release_record(store, release_id).release.name
    except ConfigError as error:
        return message(404, "No report", str(error))
    if config != loaded.config.name:
        return message(404, "No report", f"{release_id} is no release of {dag_id}")
    return _report(store, release_id)


def _report(store: ArtifactStore, release_id: str) -> HTMLResponse:
    try:
        report = store.read_file(report_name(release_id))
    except FileNotFoundError:
        return message(404, "No report yet", f"Release {release_id} is running; its report is written at the end.")
    return HTMLResponse(report.decode(errors="replace"), headers=SECURITY_HEADERS)


@app.get("/releases")
def releases(user: GetUserDep, text: str = "", state: str = "") -> HTMLResponse:
    """What serves, what is watched, and all releases, of the DAGs that the user may read.

    Status 503 if a store cannot be read.
    """
    shown = _Shown(_readable_configs(user))
    serving = {one.pointer.release_id for one in shown.placed if one.name == "production"}
    asked = ReleaseFilter(text, state)
    listed = asked.of(shown.releases, serving)
    watches = watches_table(shown.watches())
    body = problem_list("Stores that cannot be read", shown.unread) + serving_table(shown.serving())
    body += filter_form(asked) + releases_table(listed) + watches
    body += problem_list(f"Stores of which only the newest {INDEXED:,} releases are listed", shown.full)
    if shown.releases and not listed:
        body += "<p>No release matches the filter.</p>"
    if not shown.releases and not shown.unread:
        body += _NONE_YET if shown.paths else _NONE_READABLE
    body += problem_list("Release configs with a mistake", shown.wrong)
    return page(503 if shown.unread else 200, "Releases", body)


@app.get("/compare")
def compared(user: GetUserDep, release: Annotated[list[str], Query()] = []) -> HTMLResponse:  # noqa: B006
    """Two releases side by side."""
    shown = _Shown(_readable_configs(user))
    if shown.unread:
        return page(503, "Not available", problem_list("Stores that cannot be read", shown.unread))
    chosen = [one for one in shown.releases if one.row.release_id in release]
    if len(chosen) != 2:  # noqa: PLR2004
        return message(400, "Choose two releases", "Tick two releases of the list; both must be yours to read.")
    second, first = chosen  # the newest is listed first
    stores = [shown.configs[one.row.config].deployment.store for one in (first, second)]
    comparison = None
    if stores[0].uri == stores[1].uri:
        references = (ReleaseReference(one.row.release_id) for one in (first, second))
        comparison = compare(store_to_read(stores[0]), *references)
    return page(200, "Two releases", side_by_side(first, second, comparison))


_NONE_YET = "<p>No release yet: trigger a DAG whose name begins with <code>release__</code>.</p>"
_NONE_READABLE = "<p>You may read no DAG whose name begins with <code>release__</code>.</p>"


class _Shown:
    """What there is to show of some release configs: each store is read once.

    Attributes:
        releases: The newest first.
        placed: What serves, and what served before.
        unread: What cannot be read, with the reason.
        away: URIs of the stores that cannot be read at all.
        full: URIs of the stores with more releases than their index holds.
        wrong: Release configs with a mistake.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.configs: dict[str, ConfiguredRelease] = {}
        self.unread: list[str] = []
        self.full: list[str] = []
        self.away: set[str] = set()
        self.wrong: list[str] = []
        used = _used(map(dag_id_of, paths))
        for path in paths:
            with contained(path.name) as faults:
                loaded = load_config(path)
                if dag_id_of(path) in used or _is_here(loaded):
                    self.configs[loaded.config.name] = config_with_secrets(path)
            self.wrong += [f"{path.name}: {fault}" for fault in faults]
        releases: list[IndexedRelease] = []
        placed: list[PointerReference] = []
        for uri, settings in {one.deployment.store.uri: one.deployment.store for one in self.configs.values()}.items():
            with contained(f"reading {uri}") as faults:
                store = store_to_read(settings)
                found, (pointers, lost) = read_releases(store), readable_pointers(store)
                releases += [one for one in found.whole if one.row.config in self.configs]
                self.full += [uri] if len(found.whole) >= INDEXED else []
                placed += pointers
                if damaged := [*found.damaged, *map(DamagedRow.of, lost)]:
                    log.warning("%s", Lines("\n".join(map(str, damaged))))
                    which = "`llm-pipeline ls releases` names them"
                    self.unread.append(f"{uri}: {len(damaged)} documents cannot be read; {which}")
            self.unread += [f"{uri}: {fault}" for fault in faults]
            self.away |= {uri for _ in faults}
        self.releases = sorted(releases, key=lambda one: one.row.resolved_at, reverse=True)
        self.placed = sorted(
            (one for one in placed if one.pointer.release_id.rsplit("-", 2)[0] in self.configs),
            key=lambda one: (one.target, one.model_id, one.name != "production"),
        )

    def serving(self) -> list[Placed]:
        """Every pointer, with what is seen of its place now."""
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            return list(zip(self.placed, pool.map(self._seen, self.placed), strict=True))

    def _seen(self, one: PointerReference) -> tuple[bool, str]:
        """Whether users are answered at a place, as far as this host reaches it."""
        if one.name != "production":
            return True, ""
        deployment = self.configs[one.pointer.release_id.rsplit("-", 2)[0]].deployment
        router = deployment.places[one.target].router if one.target in deployment.places else None
        if router is None or not (url := router.users_url()):
            return True, "its address is not in the deployment"
        try:
            trusted = create_default_context(cafile=router.users_certificate())
            answer = httpx.get(f"{url}/v1/models", timeout=_PATIENCE_SECONDS, trust_env=False, verify=trusted)
        except (httpx.HTTPError, OSError) as error:
            return False, f"{url} gives no answer here ({type(error).__name__})"
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return False, f"{url} answers with status {answer.status_code}"
        return True, f"{url} answers"

    def watches(self) -> list[tuple[ReleaseConfig, WatchStatus | None]]:
        """What is watched on the hub, where stores can be read; what cannot be of it is added to the problems."""
        found: list[tuple[ReleaseConfig, WatchStatus | None]] = []
        for name, loaded in self.configs.items():
            if loaded.config.watch is None or loaded.deployment.store.uri in self.away:
                continue
            with contained(f"the watch of {name}") as faults:
                found.append((loaded.config, read_status(store_to_read(loaded.deployment.store), name)))
            self.unread += [str(fault) for fault in faults]
        return found


def _used(dag_ids: Iterable[str]) -> set[str]:
    """The DAGs of which there is a run: the store of an example that nobody ever released need not be there."""
    wanted = list(dag_ids)
    runs = select(DagRun.dag_id).where(DagRun.dag_id.in_(wanted))
    composed = select(DagTag.name).join(DagRun, DagRun.dag_id == DagTag.dag_id).where(DagTag.name.in_(wanted))
    with create_session() as session:
        return {*session.scalars(runs.distinct()), *session.scalars(composed.distinct())}


def _composed(dag_id: str) -> list[Path]:
    """The release configs that somebody's own DAG holds, by its tags."""
    with create_session() as session:
        tags = set(session.scalars(select(DagTag.name).where(DagTag.dag_id == dag_id)))
    return [path for path in release_configs() if dag_id_of(path) in tags]


def _is_here(loaded: ConfiguredRelease) -> bool:
    """Whether its store is a directory of this host, with whatever was released without this Airflow."""
    directory = loaded.deployment.store.directory
    return directory is not None and directory.is_dir()


def _readable_configs(user: Any) -> list[Path]:
    manager = get_auth_manager()
    return [
        path
        for path in release_configs()
        if manager.is_authorized_dag(
            method="GET", access_entity=DagAccessEntity.RUN, details=DagDetails(id=dag_id_of(path)), user=user
        )
    ]

"""Pages for people inside Airflow's UI: a run's release report, the list of releases and what is watched.

Plugin routes have no authentication of their own in Airflow 3.3, so every route here asks for it. Reports are served
as they were stored, under a policy that lets them run no script and load nothing from anywhere. What cannot be read is
said with its reason and status 503: a page never takes a store that does not answer for an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
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
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from sqlalchemy import select

from llm_pipeline.base.errors import ConfigError, IntegrityError, InternalError, PipelineError, Transient
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.untrusted_text import several_lines
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.release import ReleaseConfig
from llm_pipeline.config.store import StoreModel
from llm_pipeline.inspection.comparison import Comparison, compare
from llm_pipeline.inspection.release_summaries import ReleaseSummary, read_releases
from llm_pipeline.release.loading import ConfiguredRelease, load_config
from llm_pipeline.release.record import read_release_record, report_name
from llm_pipeline.release.watch_record import WatchStatus, read_status
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.references import PointerReference, ReleaseReference, readable_pointers
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.faults import contained, known_fault
from llm_pipeline_airflow.links import DAG_PREFIX
from llm_pipeline_airflow.settings import config_path_of, dag_id_of, release_configs
from llm_pipeline_airflow.started_run import release_of_run

log = get_logger(__name__)

_ASKED_AT_ONCE = 8
_PATIENCE_SECONDS = 2.0
_MOST_LISTED = 200
_OPEN = "open"
_SERVES = "serves"
_STATES = ("", *(verdict.value for verdict in Verdict), "denied", "timed out", "ended", _OPEN, _SERVES)
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; "
        "base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
FIGURES: Mapping[str, Mapping[str, str]] = {
    "size": {"Size": "", "GPU memory": "GPU memory"},
    "speed": {"Engine alone": "alone", "Requests under load": "under load", "Tokens": "", "Tokens a step": "a step"},
    "million tokens": {"Cost": ""},
    "accuracy lost": {"Accuracy lost": ""},
}
"""Columns of the report's figures: the figures' labels, and what a cell says of each beside its recipe or target."""


def page(status: int, title: str, template: str = "layout", **values: Any) -> HTMLResponse:
    """A whole page.

    Args:
        status: Of the answer.
        title: Its heading.
        template: What makes its content; by default that is the paragraph `text`.
        values: What the template shows; every text is escaped.
    """
    document = _TEMPLATES.get_template(f"{template}.html.jinja").render(title=title, **values)
    return HTMLResponse(document, status_code=status, headers=SECURITY_HEADERS)


def failed(error: PipelineError) -> HTMLResponse:
    """For what a page could not be made of; an error of ours is written for people, any other is for the log."""
    if isinstance(error, InternalError):
        return page(500, "Internal error", text="See the API server's log.")
    return page(500 if isinstance(error, IntegrityError) else 503, "Not available", text=str(error))


class GuardedRoute(APIRoute):
    """A route that answers an exception by a page: Starlette would raise it again in Airflow's server."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except (HTTPException, RequestValidationError):
                raise
            except Exception as error:  # noqa: BLE001 - the edge of the request
                return failed(known_fault(error, f"{request.method} {self.path}"))

        return guarded


def side_by_side(first: ReleaseSummary, second: ReleaseSummary, comparison: Comparison | None) -> HTMLResponse:
    """Two releases: what they are, their gates and figures, then what differs in all that they read and made.

    Args:
        first: On the left.
        second: On the right.
        comparison: None for releases in two stores, which only their figures can be compared of.
    """
    both = (first, second)
    gates = dict.fromkeys(gate for one in both for gate in one.verdicts)
    labels = dict.fromkeys(figure.label for one in both for figure in one.figures)
    tables = {
        "The releases": [
            ("model", *(one.row.model for one in both)),
            ("commit", *(one.row.commit for one in both)),
            ("created", *(_time(one.row.resolved_at) for one in both)),
            ("verdict", *(one.row.verdict or "open" for one in both)),
            ("recipe", *(", ".join(f"{recipe} on {target}" for target, recipe in one.recipes.items()) for one in both)),
            ("cost", *(one.cost.in_words(one.currency) for one in both)),
            ("decided", *("; ".join(one.decided) for one in both)),
        ],
        "Gates": [(gate, *(one.verdicts.get(gate, "") for one in both)) for gate in gates],
        "Figures": [(label, *(_figure(one, label) for one in both)) for label in labels],
    }
    sections = comparison and [
        (one.title, one.note, [(change.path, _shown(change.before), _shown(change.after)) for change in one.changes])
        for one in comparison.sections
    ]
    names = {"first": first.row.release_id, "second": second.row.release_id}
    return page(200, "Two releases", "compare", tables=tables, sections=sections, **names)


def _figure(one: ReleaseSummary, label: str) -> str:
    return "; ".join(f"{figure.value}: {figure.note}" for figure in one.figures if figure.label == label)


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _figures(one: ReleaseSummary, labels: Mapping[str, str]) -> list[str]:
    """What a cell of the list says of some figures of a release."""
    told = []
    for figure in one.figures:
        label, _, of = figure.label.partition(", ")
        if label in labels:
            told.append(f"{figure.value} ({', '.join(filter(None, (of, labels[label])))})")
    return told


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M UTC}"


app = FastAPI(title="LLM releases", docs_url=None, redoc_url=None, openapi_url=None)
app.router.route_class = GuardedRoute


@app.get("/dags/{dag_id}/runs/{run_id}/report", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
def run_report(dag_id: str, run_id: str) -> HTMLResponse:
    """The report of the release that a run works on."""
    try:
        configs = [config_path_of(dag_id)]
    except ConfigError as error:
        configs = _composed(dag_id)
        if not configs:
            return page(404, "No report", text=str(error))
    for config in configs:
        store = _store_to_read(config_with_secrets(config).deployment.store)
        if (release_id := release_of_run(store, dag_id, run_id)) is not None:
            return _report(store, release_id)
    return page(404, "No report yet", text="The run's first stage has not named its release yet.")


@app.get(
    "/dags/{dag_id}/releases/{release_id}/report",
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))],
)
def release_report(dag_id: str, release_id: str) -> HTMLResponse:
    """The report of a release of a DAG's release config."""
    try:
        loaded = config_with_secrets(config_path_of(dag_id))
        store = _store_to_read(loaded.deployment.store)
        config = read_release_record(store, release_id).release.name
    except ConfigError as error:
        return page(404, "No report", text=str(error))
    if config != loaded.config.name:
        return page(404, "No report", text=f"{release_id} is no release of {dag_id}")
    return _report(store, release_id)


def _report(store: ArtifactStore, release_id: str) -> HTMLResponse:
    try:
        report = store.read_file(report_name(release_id))
    except FileNotFoundError:
        return page(404, "No report yet", text=f"Release {release_id} is running; its report is written at the end.")
    return HTMLResponse(report.decode(errors="replace"), headers=SECURITY_HEADERS)


@app.get("/releases")
def releases(user: GetUserDep, text: str = "", state: str = "") -> HTMLResponse:
    """What serves, what is watched, and all releases, of the DAGs that the user may read.

    Status 503 if a store cannot be read.
    """
    shown = _Shown(_readable_configs(user))
    in_production = {one.pointer.release_id for one in shown.placed if one.name == "production"}

    def is_asked_for(one: ReleaseSummary) -> bool:
        if text.lower() not in f"{one.row.release_id} {one.row.model}".lower():
            return False
        if state == _SERVES:
            return one.row.release_id in in_production
        return state in ("", one.row.verdict or _OPEN)

    watches = shown.watches()  # adds to what cannot be read
    return page(
        503 if shown.unread else 200,
        "Releases",
        "releases",
        shown=shown,
        serving=shown.serving(),
        text=text,
        state=state,
        states=_STATES,
        listed=list(filter(is_asked_for, shown.releases)),
        most_listed=_MOST_LISTED,
        figures=FIGURES,
        dag_prefix=DAG_PREFIX,
        watches=watches,
    )


@app.get("/compare")
def compared(user: GetUserDep, release: Annotated[list[str], Query()] = []) -> HTMLResponse:  # noqa: B006
    """Two releases side by side."""
    shown = _Shown(_readable_configs(user))
    if shown.unread:
        return page(503, "Not available", "unread", unread=shown.unread)
    chosen = [one for one in shown.releases if one.row.release_id in release]
    if len(chosen) != 2:  # noqa: PLR2004
        return page(400, "Choose two releases", text="Tick two releases of the list; both must be yours to read.")
    second, first = chosen  # the newest is listed first
    stores = [shown.configs[one.row.config].deployment.store for one in (first, second)]
    comparison = None
    if stores[0].uri == stores[1].uri:
        references = (ReleaseReference(one.row.release_id) for one in (first, second))
        comparison = compare(_store_to_read(stores[0]), *references)
    return side_by_side(first, second, comparison)


class _Shown:
    """What there is to show of some release configs: each store is read once.

    Attributes:
        releases: The newest first.
        placed: What serves, and what served before.
        unread: What cannot be read, with the reason.
        away: URIs of the stores that cannot be read at all.
        wrong: Release configs with a mistake.
    """

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.configs: dict[str, ConfiguredRelease] = {}
        self.unread: list[str] = []
        self.away: set[str] = set()
        self.wrong: list[str] = []
        used = _used(map(dag_id_of, paths))
        for path in paths:
            with contained(path.name) as faults:
                loaded = load_config(path)
                if dag_id_of(path) in used or _is_here(loaded):
                    self.configs[loaded.config.name] = config_with_secrets(path)
            self.wrong += [f"{path.name}: {fault}" for fault in faults]
        releases: list[ReleaseSummary] = []
        placed: list[PointerReference] = []
        for uri, settings in {one.deployment.store.uri: one.deployment.store for one in self.configs.values()}.items():
            with contained(f"reading {uri}") as faults:
                store = _store_to_read(settings)
                (whole, damaged), (pointers, lost) = read_releases(store), readable_pointers(store)
                releases += [one for one in whole if one.row.config in self.configs]
                placed += pointers
                if damaged := [*damaged, *lost]:
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

    def serving(self) -> list[tuple[PointerReference, tuple[bool, str]]]:
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
                found.append((loaded.config, read_status(_store_to_read(loaded.deployment.store), name)))
            self.unread += [str(fault) for fault in faults]
        return found


def _store_to_read(settings: StoreModel) -> ArtifactStore:
    """The store of a deployment, for a page that shows what is in it.

    Raises:
        Transient: It is a directory that this host does not have, so that nothing can be said of what is in it.
    """
    if settings.directory is not None and not settings.directory.is_dir():
        hint = "mount it on the API server's host; if no release was ever made, the first one makes it"
        raise Transient("this host has no such directory of a store", where=settings.uri, hint=hint)
    return open_store(settings)


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


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=lambda value: several_lines(value) if type(value) is str else value,
)
_TEMPLATES.filters |= {"figures": _figures, "time": _time}

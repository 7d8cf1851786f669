"""Ends everything that releases left serving at a place of this host, so that nobody has to look for process ids.

That is production, a release on trial that nobody drives any more, what is staged, and stages whose run has ended. A
release that is on its way keeps its staging server and its stages: whoever runs it ends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_pipeline.base import detached
from llm_pipeline.base.directory_listing import list_directory
from llm_pipeline.canary.record import latest_canary
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.operations.rollback import roll_back_at
from llm_pipeline.operations.staging import COMPARISON, on_its_way, places_of, stop_staging
from llm_pipeline.operations.status import STAGING
from llm_pipeline.operations.switching import DRAIN_SECONDS, runs_anything, stop_production
from llm_pipeline.serving.triton_server import find_server
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.model_documents import model_of_release
from llm_pipeline.store.places import holder_of, serving_at

_STAGE_SECONDS = 20.0


def what_is_left(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[str]:
    """What `stop_all` would end at a place, a few words each; nothing where nothing runs."""
    serving = serving_at(store, place)
    if serving is not None and runs_anything(deployment, place):
        yield f"{serving.pointer.release_id} of {serving.model_id}, which is in production"
    if (trial := _left_on_trial(store, deployment, place)) is not None:
        yield f"the canary of {trial}, which is rolled back"
    if on_its_way(store, place) is None:
        root = Path(deployment.state_root) / place
        yield from (f"the {name} server" for name in (STAGING, COMPARISON) if find_server(root / name) is not None)
        yield from (process.name for process in _left_stages(store, deployment, place))


def stop_all(
    store: ArtifactStore, deployment: Deployment, place: str, *, drain_seconds: float = DRAIN_SECONDS
) -> Sequence[str]:
    """End what was left at a place: stages first, because one may drive a canary, and production last.

    Asked twice, it is done once. The pointers stay, and `start_production` brings production back.

    Args:
        store: The deployment's.
        deployment: What is stopped is on this host.
        place: Which of its places.
        drain_seconds: Longest wait for requests of users in flight.

    Returns:
        What was stopped; nothing where nothing ran.

    Raises:
        ConfigError: A release is on trial, and whoever runs it is still there.
        PlaceBusy: Somebody acts on the place now.
        PipelineError: A canary cannot be rolled back; the same call is safe again.
    """
    stopped: list[str] = []
    if on_its_way(store, place) is None:
        for process in _left_stages(store, deployment, place):
            detached.stop(process, grace_seconds=_STAGE_SECONDS)
            stopped.append(process.name)
        stopped += _end_trial(store, deployment, place)
    if not (Path(deployment.state_root) / place).is_dir():
        return stopped  # its servers are on another host, where this is asked for
    stopped += stop_production(store, deployment, place, drain_seconds=drain_seconds)
    local = isinstance(deployment.places[place].staging, ServerPorts)
    if local and on_its_way(store, place) is None and stop_staging(store, deployment, place):
        stopped.append("the staging server")
    return stopped


def _end_trial(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[str]:
    release_id, holder = _left_on_trial(store, deployment, place), holder_of(store, place)
    if release_id is None:
        return
    model = model_of_release(store, release_id) or (holder.model_id if holder else "")
    roll_back_at(store, deployment, model, place, by="stop", leaving=release_id)
    yield f"the canary of {release_id}"


def _left_on_trial(store: ArtifactStore, deployment: Deployment, place: str) -> str | None:
    """The release whose canary has not ended, while a server of its place runs and no run drives it."""
    record = latest_canary(store, place)
    if record is None or record.settled or not runs_anything(deployment, place):
        return None
    return record.release_id if on_its_way(store, place) is None else None


def _left_stages(store: ArtifactStore, deployment: Deployment, place: str) -> Iterator[detached.DetachedProcess]:
    """Stages of the place's releases that run on this host though their run is over."""
    jobs = Path(deployment.work_root) / "jobs"
    for release in list_directory(jobs):
        if place in places_of(store, release.name):
            found = [detached.load(record) for record in sorted(release.glob("*/*/process.json"))]
            yield from (process for process in found if process is not None and process.alive)

"""The staging server of a place by hand: a packaged release for a look, and the end of it."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.base.errors import ConfigError, PipelineError, from_document
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.server_ports import ServerPorts
from llm_pipeline.flow import Flow
from llm_pipeline.operations.status import STAGING
from llm_pipeline.release.claim import readable_claims
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.release.record import ReleaseRecord, read_record
from llm_pipeline.serving.triton_server import find_server, stop_server
from llm_pipeline.store.artifact_store import ArtifactStore


def start_staging(store: ArtifactStore, deployment: Deployment, place: str, release_id: str) -> StageResult:
    """Serve a packaged release on the staging server and probe it, as its run does.

    Raises:
        ConfigError: The release has no target for the place.
        MissingResult: It has not been packaged.
        PipelineError: It does not start; another release that is staged is left alone.
    """
    _refuse_in_use(store, place, release_id)
    return _stage(deployment, place, release_id, "staging")


def stop_staging(store: ArtifactStore, deployment: Deployment, place: str, *, release_id: str = "") -> bool:
    """Stop what is staged at a place; returns whether something was.

    Args:
        store: The deployment's.
        deployment: Where the place is.
        place: Which of its places.
        release_id: What is staged; a server of this host is found without it.

    Raises:
        ConfigError: A release is on its way and may be measured there, or the server is none of this host and no
            release is named.
    """
    _refuse_in_use(store, place, "")
    state = Path(deployment.state_root) / place / STAGING
    if isinstance(deployment.places[place].staging, ServerPorts):
        running = find_server(state) is not None
        stop_server(state)
        return running
    if not release_id:
        raise ConfigError(f"the staging server of {place} is none of this host", hint="name its release: --release")
    return bool(_stage(deployment, place, release_id, "staging_down").metrics["was_running"])


def _stage(deployment: Deployment, place: str, release_id: str, stage: str) -> StageResult:
    flow = Flow.open(deployment, release_id)
    target = flow.record.target_at(place)
    if target not in flow.targets:
        raise ConfigError(f"release {release_id} has no target for {place}", hint=f"it has {', '.join(flow.targets)}")
    outcome = execute(flow.request(stage, target))
    if isinstance(outcome, StageFailure):
        raise from_document(outcome.error)
    return outcome


def _refuse_in_use(store: ArtifactStore, place: str, release_id: str) -> None:
    """A release on its way may be measured there; what waits for a person computes and serves nothing."""
    for state in readable_claims(store)[0].values():
        holder = state.holder
        if holder is None or holder.parked or not holder.release_id or holder.release_id == release_id:
            continue
        if place in _places(store, holder.release_id):
            raise ConfigError(
                f"{holder} is on its way and may be measured at {place}",
                hint="wait for it, or stop that run; `llm-pipeline claims --free MODEL` frees the claim of a dead one",
            )


def _places(store: ArtifactStore, release_id: str) -> set[str]:
    try:
        record: ReleaseRecord = read_record(store, release_id)
    except PipelineError:
        return set()
    return {record.place_of(target.name) for target in record.release.targets}

"""The staging server of a place by hand: a packaged release for a look, and the end of it."""

from __future__ import annotations

from pathlib import Path

from llm_pipeline.base.errors import ConfigError, PipelineError, from_document
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.release.claim import Claimant, LocalProcess, readable_claims
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.release.record import ReleaseRecord, read_release_record
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.serving.triton_server import find_server, stop_server
from llm_pipeline.store.artifact_store import ArtifactStore

STAGING, COMPARISON = "staging", "comparison"
"""Directories of their servers, in that of a place."""


def start_staging(store: ArtifactStore, deployment: Deployment, place: str, release_id: str) -> StageResult:
    """Serve a packaged release on the staging server and probe it, as its run does.

    Raises:
        ConfigError: The release has no target for the place.
        MissingResult: It has not been packaged.
        PipelineError: It does not start; another release that is staged is left alone.
    """
    refuse_in_use(store, place, release_id)
    return _stage(deployment, place, release_id, "staging")


def stop_staging(store: ArtifactStore, deployment: Deployment, place: str, *, release_id: str = "") -> bool:
    """Stop what is staged at a place, with a comparison's server; returns whether a staging server ran.

    Args:
        store: The deployment's.
        deployment: Where the place is.
        place: Which of its places.
        release_id: What is staged; a server of this host is found without it.

    Raises:
        ConfigError: A release is on its way and may be measured there, or the server is none of this host and no
            release is named.
    """
    refuse_in_use(store, place)
    ports, root = deployment.places[place].staging, Path(deployment.state_root) / place
    if isinstance(ports, ServerPorts):
        was_running = find_server(root / STAGING) is not None
        for server in (STAGING, COMPARISON):
            stop_server(root / server)
        return was_running
    if not release_id:
        raise ConfigError(f"the staging server of {place} is not on this host", hint="name its release: --release")
    return bool(_stage(deployment, place, release_id, "staging_down").metrics["was_running"])


def _stage(deployment: Deployment, place: str, release_id: str, stage: str) -> StageResult:
    flow = ReleaseProgress.open(deployment, release_id).here(deployment)
    target = flow.record.target_at(place)
    if target not in flow.targets:
        raise ConfigError(f"release {release_id} has no target for {place}", hint=f"it has {', '.join(flow.targets)}")
    outcome = execute(flow.request(stage, target))
    if isinstance(outcome, StageFailure):
        raise from_document(outcome.error)
    return outcome


def refuse_in_use(store: ArtifactStore, place: str, release_id: str = "") -> None:
    """Refuse what would disturb a release that is on its way at a place; `release_id` itself is not disturbed.

    Raises:
        ConfigError: There is one.
    """
    holder = on_its_way(store, place)
    if holder is not None and holder.release_id != release_id:
        raise ConfigError(
            f"{holder} is running and may be measured at {place}",
            hint="wait for it, or stop that run; `llm-pipeline claims --free MODEL` frees the claim of a dead one",
        )


def on_its_way(store: ArtifactStore, place: str) -> Claimant | None:
    """The release that may be measured at a place now; None for none.

    What waits for a person computes and serves nothing, and a process of this host that has ended goes no further.
    """
    for state in readable_claims(store)[0].values():
        holder = state.holder
        if holder is None or holder.parked or not holder.release_id:
            continue
        dead = isinstance(holder.party, LocalProcess) and holder.party.alive is False
        if not dead and place in places_of(store, holder.release_id):
            return holder
    return None


def places_of(store: ArtifactStore, release_id: str) -> set[str]:
    """Where a release's targets are served; nowhere for one whose record cannot be read."""
    try:
        record: ReleaseRecord = read_release_record(store, release_id)
    except PipelineError:
        return set()
    return {record.place_of(target.name) for target in record.release.targets}

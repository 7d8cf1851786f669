"""Staging: start the candidate's server where its place says and judge it with real requests."""

from __future__ import annotations

import asyncio
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from llm_pipeline.artifacts.golden import read_golden
from llm_pipeline.base.errors import Transient
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.config.server_place import ServerPlace, ServerPorts
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.serving.control import Candidate, ServerControl, StagedServer, StagingSlot, open_control
from llm_pipeline.serving.endpoint_access import require_served
from llm_pipeline.serving.kubernetes_manifests import ServedRelease
from llm_pipeline.serving.repository_links import fetch_links, refuse_other_host
from llm_pipeline.serving.triton_server import SlotBusy
from llm_pipeline.stages.request_parts import served_release, server_slot

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class ServerSlotConfig(ConfigModel):
    """Where a staging server runs, and whose it is."""

    place: ServerPlace
    slot: StagingSlot


class StagingConfig(ServerSlotConfig):
    """What staging reads.

    Attributes:
        policy: When the server is ready.
        release: The release's artifacts by name, for pods.
    """

    policy: StagingPolicy
    release: ServedRelease | None = None


def run(context: StageContext[StagingConfig]) -> StageOutput:
    """Start and probe the server; it stays up only when the judgement is GO.

    Raises:
        Transient: The staging slot is taken by another repository, or the place cannot be reached.
        Unsupported: The engine was not built for this host, or cannot be served there.
        IntegrityError: What the repository links to is missing or damaged.
        ServerFailed: The server ended at its start, or refused the model.
        ConfigError: A port is taken by somebody else, or the place is wrong.
    """
    config = context.config
    control = open_control(config.place, config.slot)
    server = _start(context, control)
    try:
        from llm_pipeline.serving.probes import probe

        require_served(server.endpoint, server.digest)
        golden = read_golden(context.inputs["repository"])
        judgement = asyncio.run(probe(server.endpoint, golden, config.policy))
    except BaseException:
        control.stop()
        raise
    if judgement.verdict is not Verdict.GO:
        control.stop()
    matched = [fact.measured for fact in judgement.evidence if fact.name == "golden outputs reproduced"]
    return StageOutput(
        metrics={
            "endpoint": server.endpoint.url,
            "ready_seconds": server.ready_seconds,
            "golden_match_fraction": matched[0] if matched else None,
        },
        judgement=judgement,
    )


def _start(context: StageContext[StagingConfig], control: ServerControl) -> StagedServer:
    config, repository = context.config, context.inputs["repository"]
    if isinstance(config.place, ServerPorts):
        refuse_other_host(repository)  # elsewhere, whoever lays the repository out there does
    candidate = Candidate(
        repository=repository,
        digest=context.request.inputs["repository"].digest,
        links={} if config.place.fetches_release else fetch_links(repository, context.store),
        release=config.release,
    )
    Thread(target=import_module, args=("llm_pipeline.serving.probes",), daemon=True).start()  # while the server starts
    try:
        return control.start(candidate, wait_seconds=config.policy.ready_timeout_seconds)
    except SlotBusy as busy:
        hint = "wait for its release to end; if that one is gone, run the stage staging_down"
        raise Transient(f"another candidate is being staged: {busy.message}", where=busy.where, hint=hint) from busy


def request(flow: ReleaseProgress, subject: str) -> tuple[StagingConfig, Inputs]:
    """What the stage is given."""
    config = StagingConfig(
        **server_slot(flow, subject),
        policy=flow.release.policy.staging,
        release=served_release(flow, subject) if flow.place(subject).staging.fetches_release else None,
    )
    return config, {"repository": flow.artifact("package", subject, "repository")}


STAGE = Stage(name="staging", version=3, config=StagingConfig, request=request, run=run, publishes=False)

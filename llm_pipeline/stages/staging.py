"""Staging: start the candidate's server on its own ports and judge it with real requests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.errors import Transient
from llm_pipeline.logging import get_logger
from llm_pipeline.serving.golden import read_golden
from llm_pipeline.serving.probes import probe
from llm_pipeline.serving.repository_host import refuse_other_host
from llm_pipeline.serving.repository_links import fetch_links
from llm_pipeline.serving.triton_server import RunningServer, SlotBusy, start_server, stop_server
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput
from llm_pipeline.verdict import Judgement, Verdict

log = get_logger(__name__)


class StagingConfig(ConfigModel):
    """What staging reads.

    Attributes:
        ports: The staging server's ports.
        policy: When it is ready.
        triton_home: Directory with the unpacked nvidia-pytriton wheel, or an installed server.
        python: Interpreter of the served model's code.
        state: The staging slot's directory.
    """

    ports: ServerPorts
    policy: StagingPolicy
    triton_home: str
    python: str
    state: str


def run(context: StageContext[StagingConfig]) -> StageOutput:
    """Start and probe the server; it stays up only when the judgement is GO.

    Raises:
        Transient: The staging slot is taken by another repository.
        Unsupported: The engine was not built for this host.
        IntegrityError: What the repository links to is missing or damaged.
        ServerFailed: The server ended at its start.
        ConfigError: A port is taken by somebody else.
    """
    server = _start(context)
    started = time.monotonic()
    judgement = asyncio.run(
        probe(
            server.http_url,
            read_golden(context.inputs["repository"]),
            context.config.policy,
            metrics_url=server.metrics_url,
        )
    )
    seconds = time.monotonic() - started
    log.info(_table(judgement))
    if judgement.verdict is not Verdict.GO:
        stop_server(Path(context.config.state))
    return StageOutput(
        metrics={
            "endpoint": server.http_url,
            "ready_seconds": server.ready_seconds,
            "probe_seconds": round(seconds, 3),
            "golden_match_fraction": _measured(judgement, "golden outputs reproduced"),
        },
        judgement=judgement,
        tool_seconds=server.ready_seconds + seconds,
    )


def _start(context: StageContext[StagingConfig]) -> RunningServer:
    config, repository = context.config, context.inputs["repository"]
    refuse_other_host(repository)
    try:
        return start_server(
            repository,
            config.ports,
            triton_home=Path(config.triton_home),
            python=Path(config.python),
            state=Path(config.state),
            digest=context.request.inputs["repository"].digest,
            links=fetch_links(repository, context.store),
            wait_seconds=config.policy.ready_timeout_seconds,
        )
    except SlotBusy as busy:
        raise Transient(
            f"another candidate is being staged: {busy.message}",
            where=busy.where,
            hint="wait for its release to end; if that one is gone, run the stage staging_down",
        ) from busy


def _measured(judgement: Judgement, name: str) -> float | None:
    return next((fact.measured for fact in judgement.evidence if fact.name == name), None)


def _table(judgement: Judgement) -> str:
    lines = [
        f"{fact.verdict!s:<13} {fact.name:<40} "
        f"{'-' if fact.measured is None else format(fact.measured, '.4g'):>8} {fact.unit:<9} {fact.detail}".rstrip()
        for fact in judgement.evidence
    ]
    return "\n" + "\n".join([*lines, f"{judgement.verdict}: {judgement.summary}"])


STAGE = Stage(
    name="staging",
    version=2,
    config=StagingConfig,
    run=run,
    environment="control",
    places=frozenset({"ports", "triton_home", "python", "state"}),
    reusable=False,
)

"""Serving what was built with a real Triton: our models' answers, streams, cancellation, metrics and log."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.policy import StagingPolicy
from llm_pipeline.engines.builder import LEAST_GOLDEN_MATCH
from llm_pipeline.serving.model_repository import write_repository
from llm_pipeline.serving.ports import LOOPBACK
from llm_pipeline.serving.probes import probe
from llm_pipeline.serving.repository_links import read_links
from llm_pipeline.serving.triton_server import RunningServer, start_server, stop_server
from llm_pipeline.verification.bench import Bench, PreparedCheckpoint
from llm_pipeline.verification.report import Seen, Skipped

OUR_METRICS = ("llm_active_requests", "llm_input_tokens_total", "llm_requests_total", "llm_tokens_total")
ENGINE_METRICS = (
    "nv_trt_llm_request_metrics",
    "nv_trt_llm_runtime_memory_metrics",
    "nv_trt_llm_kv_cache_block_metrics",
    "nv_trt_llm_disaggregated_serving_metrics",
    "nv_trt_llm_inflight_batcher_metrics",
    "nv_trt_llm_general_metrics",
    "nv_llm_input_token_len",
    "nv_llm_output_token_len",
)
"""Of the C++ backend: inflight_batcher_llm/src/custom_metrics_reporter of TensorRT-LLM, commit 89fd9b74."""

_FAMILY = re.compile(r"^# TYPE (\S+)", re.MULTILINE)
_OF_THE_MODEL = ("llm_", "nv_llm_", "nv_trt_llm_")
_OBJECTION = re.compile(r"unknown|unexpected|unrecogni[sz]ed|not supported|invalid", re.IGNORECASE)
_ABOUT_CONFIGURATION = re.compile(r"parameter|config|key|field|option", re.IGNORECASE)
_LOAD_SECONDS = 900.0


def serve_llm_api(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """Our model over the LLM API."""
    return _serve(bench, recipe, f"load_{recipe.name}", "triton_llmapi", OUR_METRICS)


def serve_engine(bench: Bench, recipe: PreparedCheckpoint) -> Seen:
    """Our model over the C++ backend, and the classic set beside it."""
    return _serve(bench, recipe, "engine_build", "triton_engine", (*OUR_METRICS, *ENGINE_METRICS))


def _serve(bench: Bench, recipe: PreparedCheckpoint, built: str, step: str, metrics: Sequence[str]) -> Seen:
    description = bench.description(built)
    if description is None:
        raise Skipped(f"{built} made no engine")
    repository, state = bench.output / "repositories" / step, bench.output / "servers" / step
    repository.parent.mkdir(parents=True, exist_ok=True)
    golden, engine = bench.golden(recipe), bench.engine(built)
    ref = ArtifactRef(kind="engine", digest=sha256_bytes(built.encode()))
    write_repository(engine, golden, {}, description.target, repository, engine_ref=ref)
    directories = {"engine": engine, "checkpoint": bench.checkpoint(recipe)}
    links = {place: directories[linked.kind] for place, linked in read_links(repository).items()}
    policy = StagingPolicy(golden_match_fraction=LEAST_GOLDEN_MATCH, minimum_golden_prompts=len(golden))
    try:
        server = start_server(
            repository, _free_ports(), triton_home=bench.triton_home, python=bench.python, state=state,
            environment=bench.server_environment, links=links, wait_seconds=_LOAD_SECONDS,
        )  # fmt: skip
        judgement = asyncio.run(probe(server.endpoint, golden, policy))
        families = _families(server)
    finally:
        stop_server(state)
    shutil.copyfile(state / "server.log", bench.output / f"{step}.log")
    text = (
        f"models {', '.join(server.models)}, loaded in {server.ready_seconds:.0f} s, {len(judgement.evidence)} probes, "
        f"metrics {', '.join(families)}"
    )
    return Seen(
        text, [*_failed_probes(judgement), *_metric_differences(metrics, families), *_objections(state / "server.log")]
    )


def _failed_probes(judgement: Judgement) -> list[str]:
    return [
        f"{fact.name}: {fact.verdict}: {fact.detail}"
        for fact in judgement.evidence
        if fact.verdict is not Verdict.GO
    ]  # fmt: skip


def _families(server: RunningServer) -> list[str]:
    """The metrics of the models, without the server's own."""
    text = call(server.metrics_url, seconds=10.0).text
    return sorted(name for name in _FAMILY.findall(text) if name.startswith(_OF_THE_MODEL))


def _metric_differences(wanted: Sequence[str], found: Sequence[str]) -> list[str]:
    return [
        *(f"metric {name}: recorded, not there" for name in sorted(set(wanted) - set(found))),
        *(f"metric {name}: there, not recorded" for name in sorted(set(found) - set(wanted) - set(OUR_METRICS))
          if not name.startswith("llm_")),
    ]  # fmt: skip


def _objections(log: Path) -> list[str]:
    """Lines of the server's log that object to something in a configuration."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [line for line in lines if _OBJECTION.search(line) and _ABOUT_CONFIGURATION.search(line)]
    warnings = [line for line in found if re.search(r"Z [WE] |^[WE]\d{4} |\[(WARNING|ERROR)\]", line)]
    return [f"the log objects: {line}" for line in dict.fromkeys(warnings)]


def _free_ports() -> ServerPorts:
    sockets = [socket.socket() for _ in range(3)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        http, grpc, metrics = (one.getsockname()[1] for one in sockets)
    finally:
        for one in sockets:
            one.close()
    return ServerPorts(http=http, grpc=grpc, metrics=metrics)

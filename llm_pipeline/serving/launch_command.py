"""Argument lists of tritonserver by rank, and of the launcher that starts the ranks.

No shell reads them, except that `trtllm-llmapi-launch` splits its arguments at blanks: none may hold one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_pipeline.artifacts.repository_layout import ENGINE_MODEL, MODEL_NAME
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.model import ConfigModel, Port
from llm_pipeline.config.target import EngineBuilderName
from llm_pipeline.serving.identity import served_name
from llm_pipeline.serving.launch_rules import LaunchMode, Placement

_SERVER = "/opt/tritonserver/bin/tritonserver"
_LLM_API_LAUNCHER = "trtllm-llmapi-launch"
_MPIRUN = "mpirun"
_MPIRUN_BY_PATH = "/opt/hpcx/ompi/bin/mpirun"
"""Called by its path, Open MPI starts its daemons on other hosts from the same directory."""

_SEGMENTS = "llm_pipeline"
_FORWARDED = ("HOME", "PATH", "LD_LIBRARY_PATH")


class MpiHosts(ConfigModel):
    """The nodes of one server by name, and how mpirun reaches them.

    Attributes:
        names: Of each node; the first is the one that mpirun runs on.
        ssh_port: Port of the other nodes' SSH servers.
        ssh_options: Further arguments of `ssh`.
    """

    names: tuple[str, ...]
    ssh_port: Port = 2222
    ssh_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerOptions:
    """Options of the servers of all ranks.

    Attributes:
        repository: The view of the model repository.
        ports: Ports of rank 0.
        digest: Digest of the repository; empty for none.
        drain_seconds: Longest wait for requests in flight at the end.
    """

    repository: str
    ports: ServerPorts
    digest: str
    drain_seconds: int


def models_of(engine: EngineBuilderName) -> tuple[str, ...]:
    """The models of the repository that is written for an engine."""
    if engine != "tensorrt_llm_engine":
        return (MODEL_NAME,)
    return ("ensemble", MODEL_NAME, "postprocessing", "preprocessing", ENGINE_MODEL, "tensorrt_llm_bls")


def rank_arguments(
    engine: EngineBuilderName, mode: LaunchMode, placement: Placement, rank: int, server: ServerOptions
) -> tuple[str, ...]:
    """Program and arguments of one rank."""
    match mode:
        case "leader" if rank > 0:
            return (*_server(server, rank, [ENGINE_MODEL]), *_silence())
        case "multi_node_launcher":  # the launcher starts the command on rank 0 only
            return (_LLM_API_LAUNCHER, *_answering_server(engine, server))
        case "orchestrator":
            return (*_answering_server(engine, server), *_without_memory_pools(placement.gpus_per_node))
        case _:
            return _answering_server(engine, server)


def launcher_command(
    mode: LaunchMode,
    ranks: Sequence[tuple[str, ...]],
    placement: Placement,
    hosts: MpiHosts | None,
    variables: Sequence[str],
) -> tuple[str, ...]:
    """What is started on the first node.

    Args:
        mode: How ranks are started.
        ranks: Program and arguments of each.
        placement: Nodes and GPUs.
        hosts: The nodes by name, if they are known.
        variables: Environment variables that every rank needs.
    """
    if mode == "single":
        return ranks[0]
    if mode == "multi_node_launcher" and hosts is None:
        nodes, each = placement.nodes, placement.gpus_per_node
        return ("srun", "-N", str(nodes), f"--ntasks-per-node={each}", "--mpi=pmix", *ranks[0])
    exported = _exported(variables) if hosts else ()
    start = (*_hosts(hosts, placement),) if hosts else (_MPIRUN,)
    if mode == "leader":
        contexts = [("-n", "1", *exported, *rank) for rank in ranks]
        return (*start, *contexts[0], *(word for context in contexts[1:] for word in (":", *context)))
    return (*start, "-n", str(len(ranks)), *exported, *ranks[0])


def _answering_server(engine: EngineBuilderName, server: ServerOptions) -> tuple[str, ...]:
    ports = server.ports
    return (
        *_server(server, 0, models_of(engine)),
        f"--id={served_name(server.digest)}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--strict-readiness=false",  # each model's own readiness counts
        "--log-format=ISO8601",
    )


def _server(server: ServerOptions, rank: int, models: Sequence[str]) -> tuple[str, ...]:
    return (
        _SERVER,
        f"--model-repository={server.repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        "--disable-auto-complete-config",
        f"--backend-config=python,shm-region-prefix-name={_SEGMENTS}_{rank}_",
        f"--exit-timeout-secs={server.drain_seconds}",
    )


def _silence() -> Iterator[str]:
    return (f"--allow-{endpoint}=false" for endpoint in ("http", "grpc", "metrics"))


def _without_memory_pools(gpus: int) -> Iterator[str]:
    """An orchestrator must not touch the GPUs of its workers."""
    yield "--pinned-memory-pool-byte-size=0"
    yield "--enable-peer-access=false"
    yield from (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(gpus))


def _hosts(hosts: MpiHosts, placement: Placement) -> Iterator[str]:
    slots = ",".join(f"{name}:{placement.gpus_per_node}" for name in hosts.names)
    yield from (_MPIRUN_BY_PATH, "--host", slots)
    yield from ("--mca", "plm_rsh_args", " ".join(["-p", str(hosts.ssh_port), *hosts.ssh_options]))


def _exported(variables: Sequence[str]) -> tuple[str, ...]:
    """Open MPI applies `-x` to one program of several only, and forwards no other variable over SSH."""
    return tuple(word for name in (*_FORWARDED, *variables) for word in ("-x", name))

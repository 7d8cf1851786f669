"""How the ranks of a target's server can be started: the rules of Triton's TensorRT-LLM backend, and argument lists.

The rules are checked before a start, because a server that breaks one hangs in MPI, or ends after minutes of loading.
No shell reads the argument lists, except that `trtllm-llmapi-launch` splits its arguments at blanks: none may hold one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_pipeline.artifacts.repository_layout import ENGINE_MODEL
from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.model import ConfigModel, Port
from llm_pipeline.config.target import EngineBuilderName, Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.serving.endpoint_access import served_name

LaunchMode = Literal["single", "leader", "orchestrator", "multi_node_launcher"]
_SERVER = "/opt/tritonserver/bin/tritonserver"
_LLM_API_LAUNCHER = "trtllm-llmapi-launch"
_MPIRUN = "mpirun"
_MPIRUN_BY_PATH = "/opt/hpcx/ompi/bin/mpirun"
"""Called by its path, Open MPI starts its daemons on other hosts from the same directory."""

_SEGMENTS = "llm_pipeline"
_FORWARDED = ("HOME", "PATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Placement:
    """The nodes and GPUs of a target's ranks.

    Attributes:
        nodes: Hosts.
        gpus_per_node: GPUs used of each.
        instances: GPU ids of each engine instance, on each node.
    """

    nodes: int
    gpus_per_node: int
    instances: tuple[tuple[int, ...], ...]

    def node_of(self, rank: int) -> int:
        """The node of a rank: mpirun and srun fill one after the other."""
        return rank // max(1, self.gpus_per_node)


def launch_mode(target: Target) -> LaunchMode:
    """How the ranks of a target's engine are started."""
    ranks = engine_adapter(target.engine).ranks
    if ranks == "launcher" and nodes_of(target) > 1:
        return "multi_node_launcher"
    if ranks == "servers" and target.parallelism.world_size > 1:
        return "orchestrator" if len(target.serving.gpu_device_ids) > 1 else "leader"
    return "single"


def require_launchable(target: Target, *, host_names: Sequence[str] = ()) -> Placement:
    """Place the ranks of a target, if its mode can start them.

    Raises:
        Unsupported: The mode cannot start this target; every reason is named.
    """
    placement, mode = _place(target), launch_mode(target)
    problems = [
        *_size_problems(target, placement),
        *_instance_problems(target, placement),
        *_mode_problems(target, mode, placement),
        *_participant_problems(target, mode),
        *_host_problems(mode, placement, host_names),
    ]
    if problems:
        raise Unsupported("; ".join(problems), where=f"target {target.name}, started as {mode}")
    return placement


def nodes_of(target: Target) -> int:
    """Hosts that one engine instance needs."""
    return max(1, -(-target.accelerator_count // target.gpus_per_node))


def _place(target: Target) -> Placement:
    nodes = nodes_of(target)
    sets = target.serving.gpu_device_ids
    if sets:
        return Placement(nodes, max((gpu + 1 for one in sets for gpu in one), default=0), sets)
    each = -(-target.accelerator_count // nodes)
    return Placement(nodes, each, (tuple(range(each)),))


def _size_problems(target: Target, placement: Placement) -> Iterator[str]:
    ranks, gpus = target.parallelism.world_size, target.accelerator_count
    if engine_adapter(target.engine).ranks == "inside":
        return
    if ranks != gpus:
        yield f"{ranks} ranks need {ranks} GPUs, accelerator_count is {gpus}"
    elif placement.nodes > 1 and ranks != placement.nodes * target.gpus_per_node:
        yield f"{ranks} ranks do not fill {placement.nodes} nodes of {target.gpus_per_node} GPUs"


def _instance_problems(target: Target, placement: Placement) -> Iterator[str]:
    sets, ranks = target.serving.gpu_device_ids, target.parallelism.world_size
    if any(len(one) != ranks for one in sets):
        yield f"each set of gpu_device_ids must name {ranks} GPUs, one for each rank"
    if placement.gpus_per_node > target.gpus_per_node:
        yield f"gpu_device_ids names GPU {placement.gpus_per_node - 1}, a node has {target.gpus_per_node}"


def _mode_problems(target: Target, mode: LaunchMode, placement: Placement) -> Iterator[str]:
    if mode in ("single", "orchestrator") and placement.nodes > 1:
        why = "the workers that it starts are on its own node" if mode == "orchestrator" else "it is one process"
        yield f"{placement.nodes} nodes are needed, and {why}"
    if mode == "multi_node_launcher" and len(target.serving.gpu_device_ids) > 1:
        yield (
            f"{len(target.serving.gpu_device_ids)} instances need a server each, on ports of their own behind a "
            "proxy: start one server for each (replicas)"
        )


def _participant_problems(target: Target, mode: LaunchMode) -> Iterator[str]:
    """Ranks and nodes that the engine's own parameters name must be those of the plan."""
    if engine_adapter(target.engine).ranks != "servers":
        return
    ranks, parameters = target.parallelism.world_size, target.serving.extra_parameters
    participants = parameters.get("participant_ids")
    if participants is not None and mode == "orchestrator":
        yield "participant_ids is for orchestrators whose workers are started beforehand; this one starts its own"
    elif participants is not None and str(participants) != ",".join(map(str, range(ranks))):
        yield f"participant_ids is {participants}, the ranks are {','.join(map(str, range(ranks)))}"
    nodes = nodes_of(target)
    if str(parameters.get("num_nodes", 1)) != str(nodes):
        yield f"serving.extra_parameters must say num_nodes: {nodes}"


def _host_problems(mode: LaunchMode, placement: Placement, names: Sequence[str]) -> Iterator[str]:
    if names and len(names) != placement.nodes:
        yield f"{len(names)} hosts are named, {placement.nodes} are needed"
    if mode == "leader" and placement.nodes > 1 and not names:
        yield "mpirun must know the hosts by name"


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
    start = tuple(_hosts(hosts, placement)) if hosts else (_MPIRUN,)
    if mode == "leader":
        contexts = [("-n", "1", *exported, *rank) for rank in ranks]
        return (*start, *contexts[0], *(word for context in contexts[1:] for word in (":", *context)))
    return (*start, "-n", str(len(ranks)), *exported, *ranks[0])


def _answering_server(engine: EngineBuilderName, server: ServerOptions) -> tuple[str, ...]:
    ports = server.ports
    return (
        *_server(server, 0, engine_adapter(engine).models),
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

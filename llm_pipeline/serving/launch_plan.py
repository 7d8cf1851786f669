"""How the server of a target is started, as data: its command, GPUs, nodes and environment.

    plan = launch_plan(target, repository="/srv/view", ports=ports)
    plan.mode, plan.nodes, plan.command

Three modes; the target decides on one:

| | |
|---|---|
| `single` | one tritonserver; the LLM API starts the ranks of its GPUs by itself |
| `leader` | an engine of several ranks: one tritonserver a rank, under mpirun; rank 0 answers |
| `multi_node_launcher` | the LLM API over several nodes: `trtllm-llmapi-launch` in every rank; rank 0 answers |

Source of modes, variables and flags: `triton_backend/scripts/launch_triton_server.py` and
`tensorrt_llm/llmapi/trtllm-llmapi-launch` of NVIDIA/TensorRT-LLM, and for ranks that do not answer
`docs/examples/tensorrt-llm/build/server.py` of kubernetes-sigs/lws at 060ab4da. The rules are checked before a start,
because a server that breaks one hangs in MPI, or ends after minutes of loading. No shell reads the argument lists,
except that `trtllm-llmapi-launch` splits its arguments at blanks: none may hold one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from llm_pipeline.artifacts.repository_layout import ENGINE_MODEL, MODEL_NAME
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.offline import OFFLINE
from llm_pipeline.config.model import ConfigModel, Port
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.serving.endpoint_access import served_name

LaunchMode = Literal["single", "leader", "multi_node_launcher"]
_SERVER = "/opt/tritonserver/bin/tritonserver"
_LLM_API_LAUNCHER = "trtllm-llmapi-launch"
_MPIRUN = "mpirun"
_MPIRUN_BY_PATH = "/opt/hpcx/ompi/bin/mpirun"
"""Called by its path, Open MPI starts its daemons on other hosts from the same directory."""

_SEGMENTS = "llm_pipeline"
_FORWARDED = ("HOME", "PATH", "LD_LIBRARY_PATH")
_SHARED_MEMORY_GIB_PER_GPU = 8
_LEAST_SHARED_MEMORY_GIB = 2
"""NVIDIA's pages start one GPU with 2 GiB and the examples of several with 20 GiB; ranks talk through it."""


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


class LaunchPlan(ConfigModel):
    """How to start one server, over as many processes and nodes as it takes.

    Attributes:
        mode: How its ranks are started.
        nodes: Hosts that it takes.
        gpus_per_node: GPUs that it takes of each; 0 on a CPU.
        command: What is started on the first node: the server, or mpirun with those of all ranks.
        environment: Variables of every process; no secrets.
        working_directory: Where every process starts: its view of the model repository.
        ready_path: HTTP path that answers 200 when the model takes requests.
        live_path: HTTP path that answers 200 while the server lives.
        shared_memory_gib: Advised size of `/dev/shm` on each node.
    """

    mode: LaunchMode
    nodes: int
    gpus_per_node: int
    command: tuple[str, ...]
    environment: dict[str, str]
    working_directory: str
    ready_path: str = f"/v2/models/{MODEL_NAME}/ready"
    live_path: str = "/v2/health/live"
    shared_memory_gib: int = Field(ge=1)


def nodes_of(target: Target) -> int:
    """Hosts that one engine instance needs."""
    return max(1, -(-target.accelerator_count // target.gpus_per_node))


def launch_mode(target: Target) -> LaunchMode:
    """How the ranks of a target's engine are started."""
    ranks = engine_adapter(target.engine).ranks
    if ranks == "launcher" and nodes_of(target) > 1:
        return "multi_node_launcher"
    return "leader" if ranks == "servers" and target.parallelism.world_size > 1 else "single"


def require_launchable(target: Target, *, host_names: Sequence[str] = ()) -> None:
    """Refuse a target whose ranks cannot be started on its GPUs.

    Raises:
        Unsupported: The mode cannot start this target; every reason is named.
    """
    mode, nodes = launch_mode(target), nodes_of(target)
    ranks, gpus = target.parallelism.world_size, target.accelerator_count
    problems = []
    if engine_adapter(target.engine).ranks != "inside":
        if ranks != gpus:
            problems.append(f"{ranks} ranks need {ranks} GPUs, accelerator_count is {gpus}")
        elif nodes > 1 and ranks != nodes * target.gpus_per_node:
            problems.append(f"{ranks} ranks do not fill {nodes} nodes of {target.gpus_per_node} GPUs")
    if mode == "single" and nodes > 1:
        problems.append(f"{nodes} nodes are needed, and it is one process")
    if host_names and len(host_names) != nodes:
        problems.append(f"{len(host_names)} hosts are named, {nodes} are needed")
    if mode != "single" and nodes > 1 and not host_names:
        problems.append("mpirun must know the hosts by name")
    if problems:
        raise Unsupported("; ".join(problems), where=f"target {target.name}, started as {mode}")


def launch_plan(
    target: Target,
    *,
    repository: str,
    ports: ServerPorts,
    hosts: MpiHosts | None = None,
    digest: str = "",
    drain_seconds: int = 30,
) -> LaunchPlan:
    """Plan the start of a target's server.

    Args:
        target: What is served, and on which GPUs.
        repository: Absolute path of the server's view of the model repository, the same on every node.
        ports: Ports of rank 0.
        hosts: Nodes by name, and how mpirun reaches them; None for one node.
        digest: Digest of the repository, which becomes part of the server's name.
        drain_seconds: Longest wait for requests in flight when the server is told to end.

    Raises:
        Unsupported: The target cannot be started; every reason is named.
        ConfigError: The repository is no absolute path without blanks.
    """
    if not repository.startswith("/") or repository.split() != [repository]:
        raise ConfigError(f"not an absolute path without blanks: {repository!r}", where=f"target {target.name}")
    require_launchable(target, host_names=hosts.names if hosts else ())
    mode, nodes, ranks = launch_mode(target), nodes_of(target), target.parallelism.world_size
    each = -(-target.accelerator_count // nodes)  # mpirun fills one node after the other
    shared = (
        _SERVER,
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={drain_seconds}",
    )
    answering = (
        *shared,
        f"--backend-config=python,shm-region-prefix-name={_SEGMENTS}_0_",
        *(f"--load-model={model}" for model in engine_adapter(target.engine).models),
        f"--id={served_name(digest)}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        "--strict-readiness=false",  # each model's own readiness counts
        "--log-format=ISO8601",
    )
    command = answering
    if mode != "single":
        start, exported = [_MPIRUN], list[str]()
        if hosts:
            slots = ",".join(f"{name}:{each}" for name in hosts.names)
            ssh = " ".join(["-p", str(hosts.ssh_port), *hosts.ssh_options])
            start = [_MPIRUN_BY_PATH, "--host", slots, "--mca", "plm_rsh_args", ssh]
            # Open MPI applies `-x` to one program of several only, and forwards no other variable over SSH.
            exported = [word for name in (*_FORWARDED, *OFFLINE) for word in ("-x", name)]
        if mode == "multi_node_launcher":  # the launcher starts the command on rank 0 only
            command = (*start, "-n", str(ranks), *exported, _LLM_API_LAUNCHER, *answering)
        else:
            command = (*start, "-n", "1", *exported, *answering)
            for rank in range(1, ranks):
                command += (
                    *(":", "-n", "1", *exported, *shared),
                    f"--backend-config=python,shm-region-prefix-name={_SEGMENTS}_{rank}_",
                    f"--load-model={ENGINE_MODEL}",
                    *(f"--allow-{endpoint}=false" for endpoint in ("http", "grpc", "metrics")),
                )
    return LaunchPlan(
        mode=mode,
        nodes=nodes,
        gpus_per_node=each,
        command=command,
        environment=OFFLINE,
        working_directory=repository,
        shared_memory_gib=max(_LEAST_SHARED_MEMORY_GIB, _SHARED_MEMORY_GIB_PER_GPU * each),
    )

"""How the servers of a target are started, as data: processes by rank, their arguments, GPUs, nodes and environment.

    plan = launch_plan(target, repository="/srv/view", ports=ports)
    plan.mode, plan.nodes, plan.command

Four modes; the target decides on one:

| | |
|---|---|
| `single` | one tritonserver; the LLM API starts the ranks of its GPUs by itself |
| `leader` | an engine of several ranks: one tritonserver a rank, under mpirun; rank 0 answers |
| `orchestrator` | an engine of several ranks or instances: one tritonserver, which starts workers on its own node |
| `multi_node_launcher` | the LLM API over several nodes: `trtllm-llmapi-launch` in every rank; rank 0 answers |

Source of modes, variables and flags: `triton_backend/scripts/launch_triton_server.py` and
`tensorrt_llm/llmapi/trtllm-llmapi-launch` of NVIDIA/TensorRT-LLM, and for ranks that do not answer
`docs/examples/tensorrt-llm/build/server.py` of kubernetes-sigs/lws at 060ab4da.
"""

from __future__ import annotations

from pydantic import Field

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.offline import OFFLINE
from llm_pipeline.config.deployment import ServerPorts
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.target import Target
from llm_pipeline.serving.launch_command import (
    LaunchMode,
    MpiHosts,
    ServerOptions,
    launch_mode,
    launcher_command,
    rank_arguments,
    require_launchable,
)

__all__ = ["LaunchMode", "LaunchPlan", "MpiHosts", "RankProcess", "launch_plan"]

_ORCHESTRATOR = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
_PROCESS_A_RANK = ("leader", "multi_node_launcher")

_SHARED_MEMORY_GIB_PER_GPU = 8
_LEAST_SHARED_MEMORY_GIB = 2
"""NVIDIA's pages start one GPU with 2 GiB and the examples of several with 20 GiB; ranks talk through it."""


class RankProcess(ConfigModel):
    """One process of a plan.

    Attributes:
        rank: Its rank; 0 answers requests.
        node: The node it runs on, from 0.
        arguments: Its program and arguments.
    """

    rank: int
    node: int
    arguments: tuple[str, ...]


class LaunchPlan(ConfigModel):
    """How to start one server, over as many processes and nodes as it takes.

    Attributes:
        target: The target's name.
        mode: How its ranks are started.
        world_size: Ranks of one engine instance.
        nodes: Hosts that it takes.
        gpus_per_node: GPUs that it takes of each; 0 on a CPU.
        instances: GPU ids of each engine instance, on each node.
        processes: What runs, by rank, without workers that a process starts itself.
        command: What is started on the first node: the first process, or the launcher of all of them.
        environment: Variables of every process; no secrets.
        working_directory: Where every process starts: its view of the model repository.
        ports: Ports of rank 0.
        ready_path: HTTP path that answers 200 when the model takes requests.
        live_path: HTTP path that answers 200 while the server lives.
        shared_memory_gib: Advised size of `/dev/shm` on each node.
    """

    target: str
    mode: LaunchMode
    world_size: int
    nodes: int
    gpus_per_node: int
    instances: tuple[tuple[int, ...], ...]
    processes: tuple[RankProcess, ...]
    command: tuple[str, ...]
    environment: dict[str, str]
    working_directory: str
    ports: ServerPorts
    ready_path: str = f"/v2/models/{MODEL_NAME}/ready"
    live_path: str = "/v2/health/live"
    shared_memory_gib: int = Field(ge=1)


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
        hosts: Nodes by name, and how mpirun reaches them. None for one node, or where Slurm knows the nodes.
        digest: Digest of the repository, which becomes part of the server's name.
        drain_seconds: Longest wait for requests in flight when the server is told to end.

    Raises:
        Unsupported: The target cannot be started; every reason is named.
        ConfigError: The repository is no absolute path without blanks.
    """
    if not repository.startswith("/") or repository.split() != [repository]:
        raise ConfigError(f"not an absolute path without blanks: {repository!r}", where=f"target {target.name}")
    mode = launch_mode(target)
    placement = require_launchable(target, host_names=hosts.names if hosts else ())
    server = ServerOptions(repository, ports, digest, drain_seconds)
    environment = OFFLINE | (_ORCHESTRATOR if mode == "orchestrator" else {})
    processes = tuple(
        RankProcess(
            rank=rank,
            node=placement.node_of(rank),
            arguments=rank_arguments(target.engine, mode, placement, rank, server),
        )
        for rank in range(target.parallelism.world_size if mode in _PROCESS_A_RANK else 1)
    )
    ranks = [process.arguments for process in processes]
    return LaunchPlan(
        target=target.name,
        mode=mode,
        world_size=target.parallelism.world_size,
        nodes=placement.nodes,
        gpus_per_node=placement.gpus_per_node,
        instances=placement.instances,
        processes=processes,
        command=launcher_command(mode, ranks, placement, hosts, tuple(environment)),
        environment=environment,
        working_directory=repository,
        ports=ports,
        shared_memory_gib=max(_LEAST_SHARED_MEMORY_GIB, _SHARED_MEMORY_GIB_PER_GPU * placement.gpus_per_node),
    )

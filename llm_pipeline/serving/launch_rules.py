"""Which ways to start a target's server are possible: the rules of Triton's TensorRT-LLM backend.

They are checked before a start, because a server that breaks one hangs in MPI, or ends after minutes of loading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_pipeline.base.errors import Unsupported
from llm_pipeline.config.target import Target

LaunchMode = Literal["single", "leader", "orchestrator", "multi_node_launcher"]

_COMPILED = "tensorrt_llm_engine"
_LLM_API = "tensorrt_llm_llmapi"


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


def default_mode(target: Target) -> LaunchMode:
    """The mode that suits a target's engine."""
    if target.engine == _LLM_API and nodes_of(target) > 1:
        return "multi_node_launcher"
    if target.engine == _COMPILED and target.parallelism.world_size > 1:
        return "orchestrator" if len(target.serving.gpu_device_ids) > 1 else "leader"
    return "single"


def require_launchable(target: Target, mode: LaunchMode, *, host_names: Sequence[str] = ()) -> Placement:
    """Place the ranks of a target, if the mode can start them.

    Raises:
        Unsupported: The mode cannot start this target; every reason is named.
    """
    placement = _place(target)
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
    if target.engine not in (_COMPILED, _LLM_API):
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
    engine, ranks = target.engine, target.parallelism.world_size
    if mode in ("leader", "orchestrator") and engine != _COMPILED:
        yield f"{mode} is a mode of compiled engines, not of {engine}"
    if mode == "multi_node_launcher" and engine != _LLM_API:
        yield f"trtllm-llmapi-launch starts the LLM API, not {engine}"
    if mode == "single" and engine == _COMPILED and ranks > 1:
        yield f"a compiled engine of {ranks} ranks needs a process for each: leader or orchestrator"
    if mode in ("single", "orchestrator") and placement.nodes > 1:
        why = "the workers that it starts are on its own node" if mode == "orchestrator" else "it is one process"
        yield f"{placement.nodes} nodes are needed, and {why}"
    if mode in ("leader", "multi_node_launcher") and len(target.serving.gpu_device_ids) > 1:
        yield (
            f"{len(target.serving.gpu_device_ids)} instances need a server each, on ports of their own behind a "
            "proxy: start one server for each (replicas), or one orchestrator"
        )


def _participant_problems(target: Target, mode: LaunchMode) -> Iterator[str]:
    """Ranks and nodes that the engine's own parameters name must be those of the plan."""
    if target.engine != _COMPILED:
        return
    ranks, parameters = target.parallelism.world_size, target.serving.extra_parameters
    participants = parameters.get("participant_ids")
    if participants is not None and mode == "orchestrator":
        yield "participant_ids is for orchestrators whose workers are started beforehand; this one starts its own"
    elif participants is not None and str(participants) != ",".join(map(str, range(ranks))):
        yield f"participant_ids is {participants}, the ranks are {','.join(map(str, range(ranks)))}"
    nodes = nodes_of(target)
    if int(parameters.get("num_nodes", 1)) != nodes:
        yield f"serving.extra_parameters must say num_nodes: {nodes}"


def _host_problems(mode: LaunchMode, placement: Placement, names: Sequence[str]) -> Iterator[str]:
    if names and len(names) != placement.nodes:
        yield f"{len(names)} hosts are named, {placement.nodes} are needed"
    if mode == "leader" and placement.nodes > 1 and not names:
        yield "mpirun must know the hosts by name"

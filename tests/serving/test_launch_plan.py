"""Launch plans: the mode that suits a target, the arguments of each rank, and everything that could not start."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llm_pipeline.artifacts.engine_description import GpuFacts, HostFacts, target_problems
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.target import Target
from llm_pipeline.serving.launch_plan import LaunchPlan, MpiHosts, launch_plan
from llm_pipeline.serving.triton_runtime import inspect_interpreter, open_home, server_environment

TARGETS = Path(__file__).parents[2] / "configs" / "targets"
PORTS = ServerPorts(http=8000, grpc=8001, metrics=8002, openai=8003)
VIEW = "/srv/view"
RANK_PARTS = {"--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--load-model=tensorrt_llm"}
HOSTS = MpiHosts(names=("first", "second"), ssh_port=2222, ssh_options=("-i", "/keys/id"))
SIXTEEN = {"accelerator_count": 16, "parallelism": {"tensor": 8, "pipeline": 2}}
TWO = {"accelerator_count": 2, "parallelism": {"tensor": 2}}


@cache
def example(name: str) -> Target:
    return load_yaml(TARGETS / f"{name}.yaml", Target)


def target_with(name: str, **changes: Any) -> Target:
    return Target.model_validate({**example(name).model_dump(), **changes})


def plan_of(name: str, *, hosts: MpiHosts | None = None, **changes: Any) -> LaunchPlan:
    return launch_plan(target_with(name, **changes), repository=VIEW, ports=PORTS, hosts=hosts, digest="0" * 64)


def ranks_of(plan: LaunchPlan) -> list[list[str]]:
    """The command of each rank of an engine under mpirun."""
    return [part.split() for part in " ".join(plan.command).split(" : ")]


@pytest.mark.parametrize("path", sorted(TARGETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_one_server_process_with_a_gpu_for_each_rank(path: Path):
    plan = plan_of(path.stem)
    target = target_with(path.stem)
    assert (plan.mode, plan.nodes, plan.gpus_per_node) == ("single", 1, target.accelerator_count)
    assert plan.command[0] == "/opt/tritonserver/bin/tritonserver"


def loaded(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[2] for word in words if word.startswith("--load-model")}


def test_a_server_loads_its_models_by_name_tells_its_digest_and_reaches_no_hub():
    plan = plan_of("h100")
    assert "--model-repository=/srv/view" in plan.command
    assert loaded(plan.command) == {"llm"}
    assert f"--id=llm_pipeline:{'0' * 64}" in plan.command
    assert plan.environment == {"TRTLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    assert plan.ready_path == "/v2/models/llm/ready"


def test_an_engine_of_two_ranks_is_a_leader_that_answers_and_one_that_only_runs_the_engine():
    plan = plan_of("l40s_engine", **TWO)
    assert (plan.mode, plan.nodes, plan.command[0]) == ("leader", 1, "mpirun")
    first, second = ranks_of(plan)
    assert not RANK_PARTS - {"--load-model=tensorrt_llm"} & set(first)
    assert set(second) >= RANK_PARTS
    classic = {"llm", "preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"}
    assert (loaded(first), loaded(second)) == (classic, {"tensorrt_llm"})
    assert len({word for word in plan.command if "shm-region-prefix-name" in word}) == 2, "each its own memory"
    assert all("--disable-auto-complete-config" in words for words in (first, second))


def test_the_llm_api_over_two_nodes_is_started_by_its_launcher_in_every_rank():
    plan = plan_of("h200_tp4", hosts=HOSTS, **SIXTEEN)
    assert (plan.mode, plan.nodes, plan.gpus_per_node) == ("multi_node_launcher", 2, 8)
    words = list(plan.command)
    assert words.count("trtllm-llmapi-launch") == 1
    assert words[:3] == ["/opt/hpcx/ompi/bin/mpirun", "--host", "first:8,second:8"]
    assert words[words.index("plm_rsh_args") + 1] == "-p 2222 -i /keys/id"
    assert words[words.index("-n") + 1] == "16"
    handed_on = {words[number + 1] for number, word in enumerate(words) if word == "-x"}
    assert handed_on == {"HOME", "PATH", "LD_LIBRARY_PATH", *plan.environment}


def test_an_engine_over_two_nodes_is_led_across_them():
    four = {"gpus_per_node": 2, "accelerator_count": 4, "parallelism": {"tensor": 4}}
    plan = plan_of("l40s_engine", hosts=HOSTS, **four)
    assert (plan.mode, plan.nodes, plan.gpus_per_node, len(ranks_of(plan))) == ("leader", 2, 2, 4)
    assert plan.command.count(":") == 3
    assert plan.command.count("--host") == 1
    assert [plan.command.count(name) for name in ("PATH", "TRTLLM_NO_USAGE_STATS")] == [4, 4]


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("h100_tp4", {"accelerator_count": 2}, "4 ranks need 4 GPUs, accelerator_count is 2"),
        ("h100_tp2", {"accelerator_count": 4}, "2 ranks need 2 GPUs, accelerator_count is 4"),
        ("h200_tp4", {**SIXTEEN, "accelerator_count": 12}, "16 ranks need 16 GPUs"),
        ("h200_tp4", {"accelerator_count": 12, "parallelism": {"tensor": 12}}, "do not fill 2 nodes of 8 GPUs"),
        ("h200_vllm", SIXTEEN, "it is one process"),
        ("l40s_engine", SIXTEEN, "mpirun must know the hosts by name"),
        ("h200_tp4", SIXTEEN, "mpirun must know the hosts by name"),
        ("h200_tp4", {**SIXTEEN, "hosts": MpiHosts(names=("first",))}, "1 hosts are named, 2 are needed"),
    ],
)
def test_what_could_not_start_is_refused_with_the_reason(name, changes, reason):
    with pytest.raises(Unsupported, match=reason):
        plan_of(name, **changes)


@pytest.mark.parametrize("repository", ["view", "/srv/my view"])
def test_a_repository_that_a_launcher_would_tear_apart_is_refused(repository: str):
    with pytest.raises(ConfigError, match="not an absolute path without blanks"):
        launch_plan(target_with("h100"), repository=repository, ports=PORTS)


def test_every_flag_is_one_of_the_real_server(tmp_path: Path):
    home = Path(__file__).parents[2] / ".envs" / "triton"
    if not home.exists():
        pytest.skip("no tritonserver here")
    found = open_home(home)
    interpreter = inspect_interpreter(home.parent / "model" / "bin" / "python", found)
    program, environment = [str(found.program), "--help"], server_environment(found, interpreter, tmp_path)
    answer = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    known = set(re.findall(r"^\s*(--[a-z-]+)", answer.stdout + answer.stderr, re.MULTILINE))
    assert {"--help", "--model-repository"} <= known
    words = [word for word in (*plan_of("h100").command, *plan_of("l40s_engine", **TWO).command) if word != "-n"]
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known


def test_a_host_of_a_target_over_two_nodes_needs_the_gpus_of_one():
    gpu = GpuFacts(name="NVIDIA H200", sm="sm90", memory_bytes=150_754_820_096)
    here = HostFacts(gpus=(gpu,) * 8, driver="590.44.01")
    assert target_problems(target_with("h200_tp4", **SIXTEEN), here) == ()
    fewer = here.model_copy(update={"gpus": (gpu,) * 7})
    assert target_problems(target_with("h200_tp4", **SIXTEEN), fewer) == ("8 GPUs are needed, 7 are visible",)

"""The committed releases: every one is planned, and what its targets need is rendered, without a GPU or a network."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from benchmarks.plan import render_target
from llm_pipeline.catalog.tables import find_container
from llm_pipeline.config.target import Target
from llm_pipeline.planning.model import Plan
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.loading import load_release

RELEASES = Path(__file__).parents[2] / "configs" / "releases"
TARGETS = {
    "llama-3.1-8b-instruct": ("h100", "h200", "l40s"),
    "llama-3.1-8b-instruct-engine": ("l40s_engine",),
    "llama-3.1-8b-instruct-vllm": ("h100_vllm",),
    "llama-3.3-70b-instruct": ("h100_tp2", "h100_tp4", "h200_tp2", "h200_tp4"),
    "llama-3.3-70b-instruct-nvfp4": ("b200",),
    "qwen2.5-7b-instruct": ("a10", "l4"),
}
"""Of the releases for GPUs."""


@cache
def plan_of(name: str) -> Plan:
    return plan_release(RELEASES / f"{name}.yaml")


def targets_with(engine: str) -> list[Target]:
    loaded = [load_release(RELEASES / f"{name}.yaml").release for name in TARGETS]
    return [target for release in loaded for target in release.targets if target.engine == engine]


def test_every_release_is_for_a_cpu_or_named_here():
    cpu = {"demo", "demo-baseline", "demo-rollback"}
    assert {path.stem for path in RELEASES.glob("*.yaml")} == {*TARGETS, *cpu}


@pytest.mark.parametrize("name", TARGETS)
def test_every_recipe_of_an_example_is_known_to_be_legal_and_fits_on_all_its_targets(name: str):
    plan = plan_of(name)
    assert tuple(target.name for target in plan.targets) == TARGETS[name]
    for target in plan.targets:
        for recipe in target.recipes:
            assert (recipe.legal, recipe.warnings) == (True, ()), (target.name, recipe)
            assert recipe.memory is not None
            assert recipe.memory.fits


@pytest.mark.parametrize("name", TARGETS)
def test_an_examples_targets_name_a_known_container_and_an_environment_of_the_deployment(name: str):
    loaded = load_release(RELEASES / f"{name}.yaml")
    for target in loaded.release.targets:
        if target.engine != "vllm":
            container = find_container(target.container or "")
            assert container is not None
            assert container.tensorrt_llm == target.runtime_version
        assert target.environment in loaded.deployment.environments


def test_the_examples_environments_are_a_host_a_container_and_a_pod():
    loaded = load_release(RELEASES / "llama-3.3-70b-instruct.yaml")
    named = {
        target.environment for name in TARGETS for target in load_release(RELEASES / f"{name}.yaml").release.targets
    }
    assert {loaded.deployment.environments[name].runner for name in named} == {"process", "docker", "kubernetes"}


def test_an_example_in_a_pod_has_a_gpu_for_every_rank():
    loaded = load_release(RELEASES / "llama-3.3-70b-instruct.yaml")
    environments = loaded.deployment.environments
    pods = [target for target in loaded.release.targets if environments[target.environment].runner == "kubernetes"]
    assert [environments[target.environment].gpus for target in pods] == [
        target.parallelism.world_size for target in pods
    ]


def test_70b_in_nvfp4_leaves_one_b200_twice_the_room_of_fp8_weights():
    nvfp4, fp8 = plan_of("llama-3.3-70b-instruct-nvfp4").targets[0].recipes
    assert nvfp4.memory is not None
    assert fp8.memory is not None
    assert (nvfp4.memory.weights / 1e9, fp8.memory.weights / 1e9) == pytest.approx((42.7, 72.7), abs=0.1)
    assert nvfp4.memory.largest_batch > fp8.memory.largest_batch


def test_the_llm_args_and_the_pods_of_every_example_are_what_its_target_says(tmp_path: Path):
    targets = targets_with("tensorrt_llm_llmapi")
    assert len(targets) == 10
    for target in targets:
        render_target(target, tmp_path / target.name)
        model = yaml.safe_load((tmp_path / target.name / "repository/llm/1/model.yaml").read_text())
        assert model["model"] == "checkpoint"
        assert model["tensor_parallel_size"] == target.accelerator_count
        assert model["max_batch_size"] == target.limits.maximum_sequences
        workload = yaml.safe_load((tmp_path / target.name / "kubernetes/deployment.yaml").read_text())
        (server,) = workload["spec"]["template"]["spec"]["containers"]
        assert server["resources"]["limits"]["nvidia.com/gpu"] == str(target.accelerator_count)


def test_the_engine_example_has_a_build_command_and_a_model_for_each_part_of_the_batcher(tmp_path: Path):
    (target,) = targets_with("tensorrt_llm_engine")
    render_target(target, tmp_path / "l40s")
    command = shlex.split((tmp_path / "l40s/build_command.txt").read_text())
    assert command[:3] == ["trtllm-build", "--checkpoint_dir", "checkpoint"]
    assert command[command.index("--max_batch_size") + 1] == str(target.limits.maximum_sequences)
    models = {path.parent.name for path in (tmp_path / "l40s/repository").glob("*/config.pbtxt")}
    assert models == {"llm", "preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"}

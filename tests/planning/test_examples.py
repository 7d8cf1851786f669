"""The committed releases: every one is planned, and what its targets need is rendered, without a GPU or a network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.catalog.tables import find_container
from llm_pipeline.config.target import Target
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.planning.model import Plan
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.loading import load_release
from llm_pipeline.serving.kubernetes_manifests import ServedRelease, ServingManifestOptions, render_manifests, to_yaml

RELEASES = Path(__file__).parents[2] / "configs" / "releases"
TARGETS = {
    "llama-3.1-8b-instruct": ("h100", "h200", "l40s"),
    "llama-3.1-8b-instruct-engine": ("l40s_engine",),
    "llama-3.1-8b-instruct-vllm": ("h100_vllm",),
    "llama-3.3-70b-instruct": ("h100_tp2", "h100_tp4", "h200_tp2", "h200_tp4"),
    "llama-3.3-70b-instruct-nvfp4": ("b200",),
    "qwen2.5-7b-instruct": ("a10", "l4"),
    "qwen3-30b-a3b": ("h200_vllm",),
    "qwen3-8b": ("l40s_vllm",),
}
"""Of the releases for GPUs."""


_OPTIONS = ServingManifestOptions(setup_image="registry.example.com/llm-pipeline-serving:0.1.0")


@cache
def plan_of(name: str) -> Plan:
    return plan_release(RELEASES / f"{name}.yaml")


def targets_with(engine: str) -> list[Target]:
    loaded = [load_release(RELEASES / f"{name}.yaml").release for name in TARGETS]
    return [target for release in loaded for target in release.targets if target.engine == engine]


def test_every_release_is_for_a_cpu_or_named_here():
    cpu = {"demo", "demo-baseline", "demo-rollback", "demo-chat", "demo-chat-baseline"}
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


def test_an_example_in_a_pod_has_a_gpu_for_every_rank():
    loaded = load_release(RELEASES / "llama-3.3-70b-instruct.yaml")
    environments = loaded.deployment.environments
    pods = [target for target in loaded.release.targets if environments[target.environment].runner == "kubernetes"]
    assert [environments[target.environment].gpus for target in pods] == [
        target.parallelism.world_size for target in pods
    ]


@pytest.mark.parametrize("target", targets_with("tensorrt_llm_llmapi"), ids=lambda target: target.name)
def test_the_llm_args_and_the_pods_of_an_example_are_what_its_target_says(target: Target):
    arguments = render_llm_args(target, checkpoint=None)
    check_llm_args(arguments, target.runtime_version or "").require(target.name)
    assert arguments["tensor_parallel_size"] == target.accelerator_count
    assert arguments["max_batch_size"] == target.limits.maximum_sequences
    release = ServedRelease(
        name="example",
        release_id="example",
        model_id="example/example",
        target=target,
        repository=ArtifactRef(kind="model_repository", digest="2" * 64),
        engine=ArtifactRef(kind="engine", digest="0" * 64),
        checkpoint=ArtifactRef(kind="checkpoint", digest="1" * 64),
    )
    workload = yaml.safe_load(to_yaml(render_manifests(release, _OPTIONS)["deployment.yaml"]))
    server, openai = workload["spec"]["template"]["spec"]["containers"]
    assert (server["name"], openai["name"]) == ("server", "openai")
    assert server["resources"]["limits"]["nvidia.com/gpu"] == str(target.accelerator_count)

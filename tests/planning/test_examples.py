"""The committed releases: every one is planned, and what its targets need is rendered, without a GPU or a network."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

from llm_pipeline.adapters.tensorrt_llm.trtllm_build import render_build_command
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.catalog.tables import find_container
from llm_pipeline.config.target import EngineBuilderName, Target
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.planning.model import Plan
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.release.loading import load_release
from llm_pipeline.serving.kubernetes_manifests import (
    ServedRelease,
    ServingManifestOptions,
    pod_launch_plan,
    render_manifests,
    to_yaml,
)
from llm_pipeline.serving.model_repository import write_repository

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


_ENGINE = ArtifactRef(kind="engine", digest="0" * 64)
_CHECKPOINT = ArtifactRef(kind="checkpoint", digest="1" * 64)
_REPOSITORY = ArtifactRef(kind="model_repository", digest="2" * 64)
_OPTIONS = ServingManifestOptions(setup_image="registry.example.com/llm-pipeline-serving:0.1.0")


def render_target(target: Target, directory: Path) -> tuple[Path, ...]:
    """Render all of it into a new directory, and check it as builds and servers do; returns the files.

    The engine itself is a stand-in: the few files of it that a model repository is made from.

    """
    engine = directory / "engine"
    engine.mkdir(parents=True)
    _RENDERERS[target.engine](target, engine)
    facts = EngineFacts(
        builder=target.engine,
        bytes=0,
        weight_format=target.weight_format,
        quantization=None,
        kv_cache="auto",
        context_length=target.limits.maximum_tokens_per_request,
        device=target.accelerator,
        versions={},
        seconds={},
    )
    EngineDescription(facts=facts, target=target, checkpoint=_CHECKPOINT).write(engine)
    write_repository(engine, [], {}, target, directory / "repository", engine_ref=_ENGINE)
    _manifests(target, directory)
    return tuple(sorted(path for path in directory.rglob("*") if path.is_file()))


def _llm_args(target: Target, engine: Path) -> None:
    arguments = render_llm_args(target, model="checkpoint", checkpoint=None)
    check_llm_args(arguments.document, arguments.version).require(target.name)
    (engine / "llm_args.yaml").write_text(arguments.to_yaml())


def _build_command(target: Target, engine: Path) -> None:
    command = render_build_command(target, Path("checkpoint"), Path("engine"))
    (engine.parent / "build_command.txt").write_text(shlex.join(command))
    (engine / "config.json").write_text(json.dumps({"pretrained_config": {"logits_dtype": "float32"}}))
    (engine / "tokenizer").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (engine / "tokenizer" / name).write_text("{}")


def _manifests(target: Target, directory: Path) -> None:
    release = ServedRelease(
        name="example",
        release_id="example",
        model_id="example/example",
        target=target,
        repository=_REPOSITORY,
        engine=_ENGINE,
        checkpoint=_CHECKPOINT,
    )
    (directory / "launch_plan.json").write_text(pod_launch_plan(release, _OPTIONS).model_dump_json(indent=1))
    (directory / "kubernetes").mkdir()
    for name, manifest in render_manifests(release, _OPTIONS).items():
        (directory / "kubernetes" / name).write_text(to_yaml(manifest))


_RENDERERS: Mapping[EngineBuilderName, Callable[[Target, Path], None]] = {
    "tensorrt_llm_llmapi": _llm_args,
    "tensorrt_llm_engine": _build_command,
}
"""What the build of each engine is given."""


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
        server, openai = workload["spec"]["template"]["spec"]["containers"]
        assert (server["name"], openai["name"]) == ("server", "openai")
        assert server["resources"]["limits"]["nvidia.com/gpu"] == str(target.accelerator_count)


def test_the_engine_example_has_a_build_command_and_a_model_for_each_part_of_the_batcher(tmp_path: Path):
    (target,) = targets_with("tensorrt_llm_engine")
    render_target(target, tmp_path / "l40s")
    command = shlex.split((tmp_path / "l40s/build_command.txt").read_text())
    assert command[:3] == ["trtllm-build", "--checkpoint_dir", "checkpoint"]
    assert command[command.index("--max_batch_size") + 1] == str(target.limits.maximum_sequences)
    models = {path.parent.name for path in (tmp_path / "l40s/repository").glob("*/config.pbtxt")}
    assert models == {"llm", "preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"}

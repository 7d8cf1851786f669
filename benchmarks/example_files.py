"""What the build and the server of a GPU target are given, rendered without a GPU: for the benchmark and for tests."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from llm_pipeline.adapters.tensorrt_llm.trtllm_build.command import render_build_command
from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineBuilderName, Target
from llm_pipeline.engines.llm_args.checking import check_llm_args
from llm_pipeline.engines.llm_args.rendering import render_llm_args
from llm_pipeline.serving.kubernetes_manifests import (
    ServedRelease,
    ServingManifestOptions,
    pod_launch_plan,
    render_manifests,
    to_yaml,
)
from llm_pipeline.serving.model_repository import write_repository

_ENGINE = ArtifactRef(kind="engine", digest="0" * 64)
_CHECKPOINT = ArtifactRef(kind="checkpoint", digest="1" * 64)
_REPOSITORY = ArtifactRef(kind="model_repository", digest="2" * 64)
_OPTIONS = ServingManifestOptions(setup_image="registry.example.com/llm-pipeline-serving:0.1.0")


def render_target(target: Target, directory: Path) -> tuple[Path, ...]:
    """Render all of it into a new directory, and check it as builds and servers do; returns the files.

    The engine itself is a stand-in: the few files of it that a model repository is made from.

    Raises:
        PipelineError: Something is not legal in the target's version, or breaks a rule of the server.
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
    command = render_build_command(target, Path("checkpoint"), Path("engine"), new_timing_cache=Path("timing.cache"))
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

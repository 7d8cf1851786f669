"""Builds TensorRT engines with `trtllm-build` of TensorRT-LLM 1.0 to 1.2.x; later releases have no engine compiler.

Everything that can be known before is checked before: options, host, version, checkpoint. The engine is built beside
its destination and moved there when it is what was asked, so that a half-made one never looks like an engine.

The engine's directory is the one that TensorRT-LLM loads (`config.json`, `rankN.engine`), with `tokenizer/` and
`engine.json`, which records what TensorRT-LLM does not: GPU, driver and container.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from llm_pipeline.adapters.tensorrt_llm.trtllm_build import (
    PROGRAM,
    BuildCheckpoint,
    build_settings,
    check_engine,
    render_build_command,
)
from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.artifacts.engine_description import (
    EngineDescription,
    EngineFacts,
    HostFacts,
    driver_warning,
    read_host_facts,
    target_problems,
)
from llm_pipeline.artifacts.model_rules import TOKENIZER, TOKENIZER_CONFIG, read_model_rules
from llm_pipeline.artifacts.repository_layout import TOKENIZER_DIRECTORY
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.logging import get_logger
from llm_pipeline.config.target import Parallelism, Target
from llm_pipeline.engines.builder import BuildInputs
from llm_pipeline.engines.tool_process import run_tool

log = get_logger(__name__)

_TENSORRT_DISTRIBUTIONS = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")


class TensorRtLlmEngineBuilder:
    """The `tensorrt_llm_engine` engine builder."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        target, settings = inputs.target, build_settings(inputs.target)
        version = target.runtime_version or ""
        host = _require_host(target)
        beside = Path(sys.executable).parent / PROGRAM
        program = str(beside) if beside.is_file() else shutil.which(PROGRAM)
        if program is None:
            hint = "run the build in the target's container, or in an interpreter that has its TensorRT-LLM"
            raise Unsupported(f"there is no {PROGRAM} here", where="target.environment", hint=hint)
        installed = _installed("tensorrt_llm")  # without importing it
        if installed not in (None, version):
            raise Unsupported(
                f"this interpreter has TensorRT-LLM {installed}, the target has {version}",
                where=f"targets/{target.name}.yaml",
                hint="run the build in the target's container: an engine is read by the very version that built it",
            )
        if inputs.tensorrt_llm_checkpoint is None:
            raise Unsupported(
                "engines are built from TensorRT-LLM checkpoints, which the recipe does not export",
                hint="set tensorrt_llm_checkpoint: true in the recipe, or use engine: tensorrt_llm_llmapi",
            )
        for name in (TOKENIZER, TOKENIZER_CONFIG):
            if not (inputs.checkpoint / name).is_file():
                raise IntegrityError(f"the checkpoint has no {name}", where=str(inputs.checkpoint))
        config_file = inputs.tensorrt_llm_checkpoint / "config.json"
        checkpoint = load_record(BuildCheckpoint, config_file, "not a TensorRT-LLM checkpoint")
        quantization = checkpoint.quantization
        ranks = checkpoint.mapping.world_size
        tensorrt = next(filter(None, map(_installed, _TENSORRT_DISTRIBUTIONS)), None)
        with tempfile.TemporaryDirectory(prefix="build-", dir=destination.parent) as scratch:
            engine = Path(scratch) / "engine"
            command = render_build_command(target, inputs.tensorrt_llm_checkpoint, engine, program=program)
            log.info("compiling", ranks=ranks, workers=settings["workers"], command=" ".join(command))
            seconds = run_tool(command, time_limit_seconds=target.build.time_limit_minutes * 60)
            check_engine(engine, target, checkpoint)
            tokenizer = engine / TOKENIZER_DIRECTORY
            tokenizer.mkdir()
            copy_companions(inputs.checkpoint, tokenizer)
            if (config := inputs.checkpoint / "config.json").is_file():
                shutil.copyfile(config, tokenizer / "config.json")
            facts = EngineFacts(
                bytes=sum(path.stat().st_size for path in engine.rglob("*") if path.is_file()),
                quantization=quantization.quant_algo,
                kv_cache=(quantization.kv_cache_quant_algo or checkpoint.dtype).lower(),
                context_length=target.limits.maximum_tokens_per_request,
                device=host.gpus[0].name,
                versions={"tensorrt_llm": version, **({"tensorrt": tensorrt} if tensorrt else {})},
                seconds={"build": seconds},
                details={"ranks": ranks, "workers": settings["workers"]},
            )
            rules = read_model_rules(inputs.checkpoint)
            EngineDescription(facts=facts, target=target, rules=rules, host=host).write(engine)
            engine.rename(destination)
        return facts


def _require_host(target: Target) -> HostFacts:
    """The facts of this host; a build needs as many of the target's GPUs as it has workers."""
    here = read_host_facts()
    needed = target.model_copy(update={"parallelism": Parallelism(tensor=int(build_settings(target)["workers"]))})
    problems = list(target_problems(needed, here))
    models = sorted({gpu.name for gpu in here.gpus})
    if len(models) > 1:
        problems.append(f"its GPUs are of several models ({', '.join(models)}): which one compiles is not certain")
    if problems:
        raise Unsupported(
            f"this host cannot build for {target.name}: {'; '.join(problems)}",
            where=f"targets/{target.name}.yaml",
            hint="build on a host with the target's GPUs: nothing was built",
        )
    if warning := driver_warning(target, here):
        log.warning(warning)
    return here


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None

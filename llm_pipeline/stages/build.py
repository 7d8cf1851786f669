"""Build: from the chosen checkpoint to the engine of one target."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from pydantic import Field

from llm_pipeline.artifacts.checkpoint_directory import check_directory
from llm_pipeline.artifacts.golden import golden_from_items
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Metric
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import Precision
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, engine_adapter, engine_builder
from llm_pipeline.release.contract import Inputs, Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import GOLDEN_MAXIMUM_TOKENS

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


class BuildConfig(ConfigModel):
    """What the build reads.

    Attributes:
        target: What to build for.
        dtype: Precision of the baseline, which a plain checkpoint keeps under `weight_format: native`.
        golden_prompts: How many generative items of the evaluation the engine answers, for its servers to repeat; so
            many that 50 are left where one in three has no sure beginning.
        maximum_tokens: Output limit of the evaluation's generations.
    """

    target: Target
    dtype: Precision = "bfloat16"
    golden_prompts: int = Field(default=80, ge=1)
    maximum_tokens: int = Field(default=32, ge=1)


def run(context: StageContext[BuildConfig]) -> StageOutput:
    """Build the engine in the work directory; a half-made one of an earlier attempt is thrown away."""
    target, destination = context.config.target, context.workdir / "engine"
    for leftover in context.workdir.iterdir():
        shutil.rmtree(leftover)
    log.info("building", builder=target.engine, gpu_target=target.name, weight_format=target.weight_format)
    started = time.monotonic()
    builder = engine_builder(target.engine, target.engine_options)
    import_seconds = time.monotonic() - started
    facts = builder.build(_inputs(context), destination)
    metrics: dict[str, Metric] = {
        "engine_bytes": facts.bytes,
        **facts.model_dump(exclude={"versions", "seconds", "bytes", "details"}),
        **facts.details,
        "seconds_import": round(import_seconds, 3),
        **{f"seconds_{phase}": seconds for phase, seconds in facts.seconds.items()},
    }
    return StageOutput(artifacts={"engine": Produced("engine", destination)}, metrics=metrics)


def _inputs(context: StageContext[BuildConfig]) -> BuildInputs:
    """What the builder gets; compilers in programs of their own open it, too, so it is checked here for all of them."""
    for name in ("checkpoint", "tensorrt_llm_checkpoint"):
        if name in context.inputs:
            check_directory(context.inputs[name])
    config, items = context.config, read_items(context.inputs["evaluation"])
    return BuildInputs(
        checkpoint=context.inputs["checkpoint"],
        target=config.target,
        dtype=config.dtype,
        checkpoint_ref=context.request.inputs["checkpoint"],
        tensorrt_llm_checkpoint=context.inputs.get("tensorrt_llm_checkpoint"),
        golden=golden_from_items(items, config.golden_prompts, maximum_tokens=config.maximum_tokens),
    )


def _tools(config: BuildConfig) -> tuple[str, ...]:
    """What compiles here; a target with a runtime names its version and container, and both are in the config."""
    return engine_adapter(config.target.engine).tools


def request(flow: ReleaseProgress, subject: str) -> tuple[BuildConfig, Inputs]:
    """What the stage is given."""
    target, recipe = flow.target(subject), flow.chosen_recipe(subject)
    quantized = flow.result("quantize", recipe).artifacts
    evaluation = flow.artifact("accuracy", recipe, "evaluation")  # its prompts are the golden ones
    inputs = {"checkpoint": quantized["checkpoint"], "evaluation": evaluation}
    if engine_adapter(target.engine).compiles_export and (exported := quantized.get("tensorrt_llm_checkpoint")):
        inputs["tensorrt_llm_checkpoint"] = exported
    target = target.model_copy(update={"description": ""})
    config = BuildConfig(target=target, dtype=flow.release.baseline.dtype, maximum_tokens=GOLDEN_MAXIMUM_TOKENS)
    return config, inputs


STAGE = Stage(name="build", version=6, config=BuildConfig, request=request, run=run, tools=_tools)

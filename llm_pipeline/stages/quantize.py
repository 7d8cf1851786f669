"""Quantize: from the downloaded checkpoint and a recipe to an exported checkpoint that has been checked."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.logging import get_logger
from llm_pipeline.quantization.modelopt_configs import refuse_unsupported
from llm_pipeline.stages.contract import Metric, Produced, Stage, StageContext, StageOutput

if TYPE_CHECKING:
    from llm_pipeline.quantization.modelopt_quantizer import QuantizerFacts
    from llm_pipeline.quantization.validation import ExportFacts

log = get_logger(__name__)


class QuantizeConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        recipe: The recipe; `weights: none` passes the checkpoint through unchanged.
        dtype: The baseline's precision, in which everything that is not quantized is exported.
    """

    recipe: QuantizationRecipe
    dtype: Literal["float16", "bfloat16"]


def run(context: StageContext[QuantizeConfig]) -> StageOutput:
    """Quantize in the work directory; a half-made export of an earlier attempt is thrown away."""
    destination = context.workdir / "checkpoint"
    shutil.rmtree(destination, ignore_errors=True)
    if context.config.recipe.weights == "none":
        return _pass_through(context.inputs["checkpoint"], destination)
    return _quantize(context, destination)


def _pass_through(source: Path, destination: Path) -> StageOutput:
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        copy = destination / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)  # without the store's read-only modes
    size = _weight_bytes(destination)
    log.info("the recipe keeps the baseline's precision: the checkpoint passes unchanged", bytes=size)
    metrics: dict[str, Metric] = {"bytes": size, "size_ratio": 1.0, "layers_quantized": 0, "calibration_samples": 0}
    return StageOutput(artifacts={"checkpoint": Produced("checkpoint", destination)}, metrics=metrics)


def _quantize(context: StageContext[QuantizeConfig], destination: Path) -> StageOutput:
    recipe, source = context.config.recipe, context.inputs["checkpoint"]
    started = time.monotonic()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    refuse_unsupported(recipe, device)
    if device == "cpu":
        torch.set_num_threads(1)
    from llm_pipeline.quantization.modelopt_quantizer import quantize_checkpoint
    from llm_pipeline.quantization.validation import validate_export

    import_seconds = round(time.monotonic() - started, 3)
    log.info("quantizing", recipe=recipe.name, weights=recipe.weights, kv_cache=recipe.kv_cache, device=device)
    dtype = getattr(torch, context.config.dtype)
    quantizer = quantize_checkpoint(
        source, destination, recipe, context.inputs.get("calibration"), dtype=dtype, device=device
    )
    export = validate_export(source, destination, recipe)
    tool_seconds = import_seconds + sum(quantizer.seconds.values())
    metrics = _metrics(destination, quantizer, export, import_seconds)
    log.info(_table(metrics))
    return StageOutput(
        artifacts={"checkpoint": Produced("checkpoint", destination)}, metrics=metrics, tool_seconds=tool_seconds
    )


def _metrics(
    destination: Path, quantizer: QuantizerFacts, export: ExportFacts, import_seconds: float
) -> dict[str, Metric]:
    return {
        "bytes": _weight_bytes(destination),
        "size_ratio": round(export.size_ratio, 4),
        "expected_size_ratio": round(export.expected_ratio, 4),
        "layers_quantized": len(export.layers),
        "calibration_samples": quantizer.calibration_samples,
        "calibration_digest": quantizer.calibration_digest,
        "seconds_import": import_seconds,
        **{f"seconds_{phase}": seconds for phase, seconds in quantizer.seconds.items()},
    }


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _table(metrics: dict[str, Metric]) -> str:
    width = max(map(len, metrics))
    return "\n" + "\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in metrics.items())


STAGE = Stage(
    name="quantize",
    version=1,
    config=QuantizeConfig,
    run=run,
    environment="model",
    tools=("nvidia-modelopt", "torch", "transformers", "tokenizers"),
)

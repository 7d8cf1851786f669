"""Quantize: from the downloaded checkpoint and a recipe to an exported checkpoint that has been checked."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_pipeline.base.collector import spare_tool
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.release.datasets import calibration_dataset

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress

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
    """Quantize, check and publish; what an attempt that was killed had made is made again."""
    recipe, source = context.config.recipe, context.inputs["checkpoint"]
    if recipe.weights == "none":
        size = _weight_bytes(source)
        log.info("the recipe keeps the baseline's precision: the checkpoint passes unchanged", bytes=size)
        return StageOutput(
            artifacts={"checkpoint": context.request.inputs["checkpoint"]},
            metrics={"bytes": size, "size_ratio": 1.0, "layers_quantized": 0, "calibration_samples": 0},
        )
    # modelopt's CUDA extensions are compiled once a machine
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(context.request.work_root) / "torch_extensions"))
    began = time.monotonic()
    import torch

    from llm_pipeline.quantization.calibration import read_calibration
    from llm_pipeline.quantization.device_memory import peak_bytes
    from llm_pipeline.quantization.export_check import check_export
    from llm_pipeline.quantization.modelopt_quantizer import Quantizer
    from llm_pipeline.quantization.tensorrt_llm_checkpoint import check_tensorrt_llm_checkpoint

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(1)
    seconds = {"import": time.monotonic() - began}
    spare_tool()
    log.info("quantizing", recipe=recipe.name, weights=recipe.weights, kv_cache=recipe.kv_cache, device=device)
    began = time.monotonic()
    dtype = getattr(torch, context.config.dtype)
    data = read_calibration(source, recipe, context.inputs.get("calibration"))
    quantizer = Quantizer(source, recipe, data, dtype=dtype, device=device)
    seconds["prepare"] = time.monotonic() - began
    checkpoint = context.workdir / "checkpoint"
    logits = quantizer.export(checkpoint)
    began = time.monotonic()
    found = check_export(source, checkpoint, recipe, logits, dtype=dtype, device=device)
    seconds["check"] = time.monotonic() - began
    artifacts = {"checkpoint": Produced("checkpoint", checkpoint)}
    metrics: dict[str, Metric] = {
        "bytes": _weight_bytes(checkpoint),
        "size_ratio": round(_weight_bytes(checkpoint) / _weight_bytes(source), 4),
        "layers_quantized": found.layers,
        "export_difference": round(found.difference, 4),
        "calibration_samples": data.texts if data else 0,
        "calibration_digest": data.digest if data else "",
    }
    if recipe.tensorrt_llm_checkpoint:
        directory = context.workdir / "tensorrt_llm_checkpoint"
        quantizer.export_tensorrt_llm(directory)
        metrics["tensorrt_llm_bytes"] = check_tensorrt_llm_checkpoint(directory, recipe, context.config.dtype)
        artifacts["tensorrt_llm_checkpoint"] = Produced("tensorrt_llm_checkpoint", directory)
    seconds |= quantizer.seconds
    metrics |= quantizer.facts | peak_bytes()
    metrics |= {f"seconds_{step}": round(spent, 3) for step, spent in seconds.items()}
    return StageOutput(artifacts=artifacts, metrics=metrics, tool_seconds=sum(seconds.values()))


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def request(flow: ReleaseProgress, subject: str) -> tuple[QuantizeConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    config = QuantizeConfig(recipe=flow.release.recipe(subject), dtype=flow.release.baseline.dtype)
    inputs = {"checkpoint": flow.artifact("download", "", "checkpoint")}
    if calibration := flow.record.datasets.get(calibration_dataset(subject)):
        inputs["calibration"] = calibration
    return config, inputs


STAGE = Stage(
    name="quantize",
    version=3,
    config=QuantizeConfig,
    request=request,
    run=run,
    environment="model",
    tools=("nvidia-modelopt", "torch", "transformers", "tokenizers"),
)

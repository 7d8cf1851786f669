"""Quantize: from the downloaded checkpoint and a recipe to a quantized checkpoint that has been checked.

A recipe with a `source` is a checkpoint that somebody else quantized: it is fetched and verified as the model was, and
has to be of that model.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from llm_pipeline.base.collector import spare_tool
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import Metric
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import Precision, QuantizationRecipe
from llm_pipeline.config.release import ready_checkpoint
from llm_pipeline.release.contract import Inputs, Produced, Stage, StageContext, StageOutput, calibration_dataset
from llm_pipeline.stages.download import CHECKPOINT, DownloadConfig, download_config, fetch

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


class QuantizeConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        recipe: The recipe; `weights: none` passes the checkpoint through unchanged.
        dtype: The baseline's precision, in which everything that is not quantized is exported.
        contents: Of a checkpoint that somebody else quantized: what names the content of each file, by its path.
        download: How that one is fetched. A place, not part of the stage key: the contents say what is fetched.
    """

    recipe: QuantizationRecipe
    dtype: Precision
    contents: dict[str, str] = Field(default={})
    download: DownloadConfig | None = None


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
    if recipe.weights == "ready":
        return _fetch(context)
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
    expected = quantizer.export(checkpoint)
    began = time.monotonic()
    found = check_export(source, checkpoint, recipe, expected, dtype=dtype, device=device)
    seconds["check"] = time.monotonic() - began
    artifacts = {"checkpoint": Produced("checkpoint", checkpoint)}
    metrics: dict[str, Metric] = {
        "bytes": _weight_bytes(checkpoint),
        "size_ratio": round(_weight_bytes(checkpoint) / _weight_bytes(source), 4),
        "layers_quantized": found.layers,
        **({} if found.difference is None else {"export_difference": round(found.difference, 4)}),
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
    return StageOutput(artifacts=artifacts, metrics=metrics)


def _fetch(context: StageContext[QuantizeConfig]) -> StageOutput:
    """What somebody else quantized."""
    from llm_pipeline.artifacts.checkpoint_loading import require_same_text

    download = context.config.download
    if download is None:
        raise IntegrityError("the release's record pins no commit of the recipe's source", where="quantize")
    source, checkpoint = context.inputs["checkpoint"], context.workdir / CHECKPOINT
    log.info("fetching a ready checkpoint", source=context.config.recipe.source, commit=download.commit)
    fetched = fetch(download, context)
    require_same_text(source, checkpoint)
    size = _weight_bytes(checkpoint)
    made: dict[str, Metric] = {
        "bytes": size,
        "size_ratio": round(size / _weight_bytes(source), 4),
        "calibration_samples": 0,
        "commit": download.commit,
    }
    return replace(fetched, metrics={**fetched.metrics, **made})


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def request(flow: ReleaseProgress, subject: str) -> tuple[QuantizeConfig, Inputs]:
    """What the stage is given."""
    recipe = flow.release.recipe(subject)
    config = QuantizeConfig(recipe=recipe, dtype=flow.release.baseline.dtype)
    if (ready := ready_checkpoint(recipe)) is not None and (pinned := flow.record.checkpoints.get(subject)) is not None:
        changes = {
            "contents": {file.path: file.content for file in pinned.files},
            "download": download_config(pinned, ready, flow.deployment.hub),
        }
        config = config.model_copy(update=changes)
    inputs = {"checkpoint": flow.artifact("download", "", "checkpoint")}
    if calibration := flow.record.datasets.get(calibration_dataset(subject)):
        inputs["calibration"] = calibration
    return config, inputs


def _tools(config: QuantizeConfig) -> tuple[str, ...]:
    """What computes the checkpoint; one that passes through, or is fetched, needs none of it."""
    if config.recipe.weights in ("none", "ready"):
        return ()
    return "nvidia-modelopt", "torch", "transformers", "tokenizers"


STAGE = Stage(
    name="quantize",
    version=5,
    config=QuantizeConfig,
    request=request,
    run=run,
    tools=_tools,
    places=frozenset({"download"}),
)

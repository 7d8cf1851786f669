"""Quantize: from the downloaded checkpoint and a recipe to an exported checkpoint that has been checked."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_pipeline.base.collector import spare_tool
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.model_tensors import require_model_tensors
from llm_pipeline.quantization.modelopt_configs import refuse_unsupported
from llm_pipeline.quantization.phases import Steps
from llm_pipeline.quantization.tensorrt_llm_checkpoint import (
    check_tensorrt_llm_checkpoint,
    refuse_unsupported_tensorrt_llm_checkpoint,
)
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.release.datasets import calibration_dataset
from llm_pipeline.store.provenance import Provenance, here

if TYPE_CHECKING:
    from llm_pipeline.flow import ReleaseProgress
    from llm_pipeline.quantization.modelopt_quantizer import Quantizer

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
    """Quantize in the work directory; what an earlier attempt finished there or in the store is not done again."""
    if context.config.recipe.weights == "none":
        return _pass_through(context)
    return _quantize(context)


def _pass_through(context: StageContext[QuantizeConfig]) -> StageOutput:
    source, began = context.inputs["checkpoint"], time.monotonic()
    require_model_tensors(source)  # by Transformers' own model, whose import takes seconds
    seconds, size = time.monotonic() - began, _weight_bytes(source)
    log.info("the recipe keeps the baseline's precision: the checkpoint passes unchanged", bytes=size)
    metrics: dict[str, Metric] = {"bytes": size, "size_ratio": 1.0, "layers_quantized": 0, "calibration_samples": 0}
    artifacts = {"checkpoint": context.request.inputs["checkpoint"]}
    return StageOutput(artifacts=artifacts, metrics=metrics, tool_seconds=seconds)


def _quantize(context: StageContext[QuantizeConfig]) -> StageOutput:
    recipe, source = context.config.recipe, context.inputs["checkpoint"]
    extensions = _keep_extensions(Path(context.request.work_root))
    began = time.monotonic()
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    refuse_unsupported(recipe, device)
    refuse_unsupported_tensorrt_llm_checkpoint(recipe)
    if device == "cpu":
        torch.set_num_threads(1)
    from llm_pipeline.quantization.calibration import read_calibration
    from llm_pipeline.quantization.calibration_store import calibration_key
    from llm_pipeline.quantization.modelopt_quantizer import Quantizer
    from llm_pipeline.quantization.validation import validate_export

    import_seconds = round(time.monotonic() - began, 3)
    spare_tool()
    log.info("quantizing", recipe=recipe.name, weights=recipe.weights, kv_cache=recipe.kv_cache, device=device)
    began = time.monotonic()  # Transformers tokenizes, and it and modelopt go through the model without its weights
    data = read_calibration(source, recipe, context.inputs.get("calibration"))
    quantizer = Quantizer(
        source, recipe, data, dtype=getattr(torch, context.config.dtype), device=device, work=context.workdir
    )
    prepare_seconds = round(time.monotonic() - began, 3)
    checkpoint = context.request.inputs["checkpoint"].digest
    key = calibration_key(recipe, checkpoint, data.digest, context.config.dtype, quantizer.settings) if data else ""
    steps = Steps(context.workdir, context.store, recipe, key, _provenance(context))
    state, origin = steps.calibration(quantizer)
    made: dict[str, Metric] = {}
    if not steps.exported:
        steps.export(quantizer, state)
        made = _export_facts(quantizer)
    _log_compiled(extensions)
    began = time.monotonic()
    try:
        with _beside(partial(steps.keep_export, made) if made else None):
            export = validate_export(
                source, steps.checkpoint, recipe, device=device, solved=quantizer.solved_algorithms(state)
            )
    except IntegrityError:
        steps.discard_export()  # the calibration stays
        raise
    artifacts = {"checkpoint": Produced("checkpoint", steps.checkpoint)}
    metrics: dict[str, Metric] = {
        "bytes": _weight_bytes(steps.checkpoint),
        "size_ratio": round(export.size_ratio, 4),
        "expected_size_ratio": round(export.expected_ratio, 4),
        "layers_quantized": len(export.layers),
        "worst_weight_error": round(export.worst_error, 4),
        "calibration": origin or "none",
        "calibration_samples": data.texts if data else 0,
        "calibration_digest": data.digest if data else "",
        **steps.facts(),
    }
    if recipe.tensorrt_llm_checkpoint:
        directory = steps.tensorrt_llm_checkpoint
        metrics["tensorrt_llm_bytes"] = check_tensorrt_llm_checkpoint(directory, recipe, context.config.dtype)
        artifacts["tensorrt_llm_checkpoint"] = Produced("tensorrt_llm_checkpoint", directory)
    if state is not None:
        artifacts["calibration"] = Produced("calibration", state)  # so that it is kept as long as this result is
    metrics |= {"seconds_import": import_seconds, "seconds_prepare": prepare_seconds}
    metrics["seconds_validate"] = round(time.monotonic() - began, 3)
    tool_seconds = sum(float(value or 0.0) for name, value in metrics.items() if name.startswith("seconds_"))
    return StageOutput(artifacts=artifacts, metrics=metrics, tool_seconds=tool_seconds)


@contextlib.contextmanager
def _beside(work: Callable[[], None] | None) -> Iterator[None]:
    """Do work that waits for the disk, if there is any, while other work needs the processor; at the end it is done."""
    if work is None:
        yield
        return
    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        yield
        working.result()


def _export_facts(quantizer: Quantizer) -> dict[str, Metric]:
    from llm_pipeline.quantization.device_memory import peak_bytes

    return {
        **quantizer.facts,
        **peak_bytes(),
        **{f"seconds_{step}": seconds for step, seconds in quantizer.seconds.items()},
    }


def _provenance(context: StageContext[QuantizeConfig]) -> Provenance:
    """Of a calibration: it is shared, so it is not told apart by who asked for it first."""
    return Provenance(
        stage=f"{STAGE.name}/{STAGE.version}",
        subject=context.config.recipe.file_name,
        stage_key=context.key,
        release_id=context.request.release_id,
        config=context.config.model_dump(mode="json"),
        inputs=context.request.inputs,
        finished_at=datetime.now(UTC),
        **here(),
    )


def _keep_extensions(work_root: Path) -> tuple[Path, frozenset[Path]]:
    """Where modelopt's CUDA extensions are compiled to, once a machine, and those that are there already."""
    directory = Path(os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(work_root / "torch_extensions")))
    return directory, frozenset(directory.rglob("*.so"))


def _log_compiled(extensions: tuple[Path, frozenset[Path]]) -> None:
    directory, before = extensions
    if compiled := sorted(path.stem for path in frozenset(directory.rglob("*.so")) - before):
        log.info("CUDA extensions compiled; the next run finds them", names=", ".join(compiled), kept_in=str(directory))


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
    version=2,
    config=QuantizeConfig,
    request=request,
    run=run,
    environment="model",
    tools=("nvidia-modelopt", "torch", "transformers", "tokenizers"),
    imports=("torch", "modelopt.torch.quantization", "modelopt.torch.export"),
)

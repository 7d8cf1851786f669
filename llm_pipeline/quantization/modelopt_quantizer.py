"""modelopt: from a plain checkpoint and a recipe to an exported, quantized checkpoint."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from transformers import AutoTokenizer

from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.errors import ConfigError
from llm_pipeline.logging import get_logger
from llm_pipeline.quantization.calibration import CalibrationSet, draw_calibration
from llm_pipeline.quantization.calibration_samples import read_sources
from llm_pipeline.quantization.checkpoint import copy_companions
from llm_pipeline.quantization.modelopt_configs import modelopt_config, refuse_unsupported
from llm_pipeline.quantization.readback import load_model

log = get_logger(__name__)

_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class QuantizerFacts:
    """What the quantizer did.

    Attributes:
        calibration_samples: Texts seen; 0 for formats without calibration.
        calibration_digest: SHA-256 over the exact token sequences; empty without.
        seconds: Wall time by phase: load, quantize, export.
    """

    calibration_samples: int
    calibration_digest: str
    seconds: Mapping[str, float]


def quantize_checkpoint(
    source: Path,
    destination: Path,
    recipe: QuantizationRecipe,
    calibration_file: Path | None,
    *,
    dtype: torch.dtype,
    device: str = "cpu",
) -> QuantizerFacts:
    """Quantize the checkpoint in `source` and export it, tokenizer included, to `destination`.

    Raises:
        Unsupported: The device cannot quantize this format (before any work).
        ConfigError: The recipe wants calibration data that is not there.
    """
    refuse_unsupported(recipe, device)
    clock = _Phases()
    calibration = _calibration(source, recipe, calibration_file)
    model = load_model(source, dtype, device)
    clock.end("load")
    with _quiet():
        mtq.quantize(
            model, modelopt_config(recipe), _forward_loop(calibration, recipe, device) if calibration else None
        )
    clock.end("quantize")
    with torch.inference_mode(), _quiet():
        # modelopt misreads the dtype of a config that was saved before; it is always given here.
        export_hf_checkpoint(model, dtype=dtype, export_dir=destination)
    copy_companions(source, destination)
    clock.end("export")
    return QuantizerFacts(
        calibration_samples=calibration.texts if calibration else 0,
        calibration_digest=calibration.digest if calibration else "",
        seconds=clock.seconds,
    )


def _calibration(source: Path, recipe: QuantizationRecipe, file: Path | None) -> CalibrationSet | None:
    if recipe.calibration is None:
        return None
    if file is None:
        raise ConfigError("the recipe is calibrated, but no calibration data were given", where=recipe.name)
    samples = read_sources(file, recipe.calibration)
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    return draw_calibration(samples, recipe.calibration, tokenizer)


def _forward_loop(calibration: CalibrationSet, recipe: QuantizationRecipe, device: str) -> Callable[[Any], None]:
    asked = recipe.calibration.batch_size if recipe.calibration else "auto"
    batches = calibration.batches(32 if asked == "auto" else asked)

    def forward(model: Any) -> None:
        reported = time.monotonic()
        for number, batch in enumerate(batches, start=1):
            with torch.no_grad():
                model(input_ids=torch.tensor(batch, device=device))
            if (now := time.monotonic()) - reported >= _PROGRESS_SECONDS or number == len(batches):
                reported = now
                log.info("calibration pass", batch=f"{number}/{len(batches)}")

    return forward


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep modelopt's prints out of the task log; its warnings and errors still come through logging."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        yield
    for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
        log.debug("modelopt", line=line)


class _Phases:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase], self._since = round(now - self._since, 3), now
        log.info("phase done", phase=phase, seconds=self.seconds[phase])

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
from llm_pipeline.quantization.calibration import CalibrationSet, draw_calibration, read_texts
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
        calibration_digest: SHA-256 over the exact token batches; empty without.
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
    model = load_model(source, dtype, device)
    calibration = _calibration(source, recipe, calibration_file)
    clock.end("load")
    with _quiet():
        mtq.quantize(model, modelopt_config(recipe), _forward_loop(calibration, device) if calibration else None)
    clock.end("quantize")
    with torch.inference_mode(), _quiet():
        # modelopt misreads the dtype of a config that was saved before; it is always given here.
        export_hf_checkpoint(model, dtype=dtype, export_dir=destination)
    copy_companions(source, destination)
    clock.end("export")
    return QuantizerFacts(
        calibration_samples=calibration.samples if calibration else 0,
        calibration_digest=calibration.digest if calibration else "",
        seconds=clock.seconds,
    )


def _calibration(source: Path, recipe: QuantizationRecipe, file: Path | None) -> CalibrationSet | None:
    if recipe.calibration is None:
        return None
    if file is None:
        raise ConfigError("the recipe is calibrated, but no calibration data were given", where=recipe.name)
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)

    def encode(texts: list[str]) -> list[list[int]]:
        return [list(tokens) for tokens in tokenizer(texts)["input_ids"]]

    drawn = draw_calibration(read_texts(file), recipe.calibration, encode)
    log.info("calibration set", samples=drawn.samples, batches=len(drawn.batches), token_digest=drawn.digest[:12])
    return drawn


def _forward_loop(calibration: CalibrationSet, device: str) -> Callable[[Any], None]:
    def forward(model: Any) -> None:
        reported = time.monotonic()
        for number, batch in enumerate(calibration.batches, start=1):
            with torch.no_grad():
                model(input_ids=torch.tensor(batch, device=device))
            if (now := time.monotonic()) - reported >= _PROGRESS_SECONDS or number == len(calibration.batches):
                reported = now
                log.info("calibration pass", batch=f"{number}/{len(calibration.batches)}")

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

"""modelopt: from a plain checkpoint and a recipe to an exported, quantized checkpoint.

    quantizer = Quantizer(source, recipe, calibration, dtype=torch.bfloat16, device="cuda")
    expected = quantizer.export(checkpoint)             # what the model in memory answers, to check the export by
    quantizer.export_tensorrt_llm(other_checkpoint)

An export spoils the model, so each loads and calibrates one of its own.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers

from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.artifacts.checkpoint_loading import empty_model, load_causal_model
from llm_pipeline.artifacts.tensor_formats import FP8_MAXIMUM
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.progress import PhaseClock, Progress
from llm_pipeline.catalog.output_head import with_head_kept
from llm_pipeline.config.quantization import QuantizationRecipe, Search
from llm_pipeline.quantization.calibration import CalibrationSet, Tokens
from llm_pipeline.quantization.device_memory import out_of_memory_in, placement_here, release_cached
from llm_pipeline.quantization.export_check import ModelInMemory
from llm_pipeline.quantization.modelopt_configs import (
    disabled_layers,
    kv_cache_config,
    modelopt_config,
    refuse_unsupported,
    search_formats,
)
from llm_pipeline.quantization.readback import probe
from llm_pipeline.quantization.tensorrt_llm_checkpoint import (
    export_tensorrt_llm,
    refuse_unsupported_tensorrt_llm_checkpoint,
)

log = get_logger(__name__)

_SCORED_SAMPLES = 128
"""Calibration samples that the sensitivity of layers is scored on, as modelopt advises."""

_SHARD = "1GB"
"""Size of an export's files: many are hashed, copied and loaded on as many cores."""


class Quantizer:
    """Quantizes one checkpoint by one recipe.

    Args:
        source: The checkpoint's directory.
        recipe: What to do.
        calibration: Its calibration data; None for a recipe without.
        dtype: Precision that the checkpoint is loaded in, and that what is not quantized is exported in.
        device: `cpu`, or `cuda` for all visible GPUs.

    Attributes:
        seconds: Wall time by step.
        facts: Small facts for the report.
    """

    def __init__(
        self,
        source: Path,
        recipe: QuantizationRecipe,
        calibration: CalibrationSet | None,
        *,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        """Refuse what cannot be done, before any work.

        Raises:
            Unsupported: The device cannot quantize this format, or it cannot be exported.
        """
        refuse_unsupported(recipe, device)
        refuse_unsupported_tensorrt_llm_checkpoint(recipe)
        self._source, self._recipe = source, with_head_kept(recipe, empty_model(source))
        self._calibration, self._dtype, self._device = calibration, dtype, device
        self._clock = PhaseClock()
        self.seconds = self._clock.seconds
        self.facts: dict[str, float | int | str | None] = {}

    def export(self, destination: Path) -> ModelInMemory:
        """Write the quantized checkpoint with all that belongs to it; `destination` is there only when it is whole.

        Raises:
            OutOfMemory: The weights, or a batch of the calibration, do not fit.
            IntegrityError: The checkpoint lacks tensors of the model.
        """
        partial, model = _emptied(destination), self._quantized()
        with out_of_memory_in("export"), torch.inference_mode(), _quiet():
            # The export gives layers that engines fuse one scale; done before, the model answers as the export will.
            requantize_resmooth_fused_llm_layers(model)
            # It also divides by a scale of FP8 in the weight's own type, and rounds twice: bfloat16 has ties for one
            # number in sixteen. Of weights that are on the grid already there is nothing left to round.
            for module in model.modules():
                quantizer: Any = getattr(module, "weight_quantizer", None)
                if getattr(quantizer, "num_bits", None) == (4, 3) and quantizer.is_enabled:
                    module.weight.copy_(quantizer(module.weight.float()))
        expected = in_memory(model)
        with self._clock.phase("export"), out_of_memory_in("export"), torch.inference_mode(), _quiet():
            # modelopt misreads the dtype of a config that was saved before; it is always given here.
            export_hf_checkpoint(model, dtype=self._dtype, export_dir=partial, max_shard_size=_SHARD)
        copy_companions(self._source, partial)
        partial.rename(destination)
        return expected

    def export_tensorrt_llm(self, destination: Path) -> None:
        """Write the TensorRT-LLM checkpoint of the same model; `destination` is there only when it is whole.

        Raises:
            OutOfMemory: The weights, or a batch of the calibration, do not fit.
            Unsupported: The model's architecture has none.
        """
        partial, model = _emptied(destination), self._quantized()
        with self._clock.phase("export_tensorrt_llm"), out_of_memory_in("export"), torch.inference_mode(), _quiet():
            export_tensorrt_llm(model, self._dtype, partial, self._recipe.tensorrt_llm_ranks)
        partial.rename(destination)

    def _quantized(self) -> Any:
        """A freshly loaded model with calibrated quantizers."""
        release_cached()
        with self._clock.phase("load"), out_of_memory_in("loading"):
            options = placement_here(self._source, self._dtype, self._device)
            model = load_causal_model(self._source, dtype=self._dtype, **options)
        # Of a model of several parts, such as Qwen3.5, Transformers loads the text alone and names no class of it; but
        # modelopt asks for one. The names that go with the exported config are those of that class, not of the whole.
        model.config.architectures = [type(model).__name__]
        renamings = model._weight_conversions  # noqa: SLF001 - what modelopt gives names back by, as it does of experts
        model._weight_conversions = [one for one in renamings if "language_model" not in str(one.source_patterns)]  # noqa: SLF001
        passes = None
        if self._calibration is not None and self._recipe.calibration is not None:
            passes = CalibrationPasses(self._calibration, self._recipe.calibration.batch_size)
        smaller = "set a smaller calibration.batch_size or maximum_tokens, use a larger GPU, or more GPUs"
        with self._clock.phase("quantize"), out_of_memory_in("calibration", smaller), _quiet():
            if self._recipe.search is not None and passes is not None:
                self._search(model, self._recipe.search, passes)
            else:
                mtq.quantize(model, modelopt_config(self._recipe), passes)
        return model

    def _search(self, model: Any, search: Search, passes: CalibrationPasses) -> None:
        """AutoQuantize: calibrate every format, score every layer, and give each the format that hurts least."""
        batches = list(passes.batches)
        random.Random(0).shuffle(batches)  # noqa: S311 - what is scored has to be like the rest, no secret
        steps = next(
            (number for number in range(len(batches)) if sum(map(len, batches[:number])) >= _SCORED_SAMPLES),
            len(batches),
        )

        def forward_step(searched: Any, batch: Sequence[Tokens]) -> Any:
            ids = _input_ids(searched, batch)
            return searched(input_ids=ids, labels=ids, use_cache=False)

        wanted, hint = search.effective_bits[0], "ask for more bits, or add a smaller format"
        try:
            _, state = mtq.auto_quantize(
                model,
                constraints={"effective_bits": wanted},
                quantization_formats=search_formats(search),
                data_loader=batches,
                forward_step=forward_step,
                loss_func=lambda output, _batch: output.loss,
                disabled_layers=disabled_layers(self._recipe),
                num_calib_steps=len(batches),
                num_score_steps=steps,
            )
        except ValueError as error:  # the bits cannot be reached, and it names the fewest that can
            raise ConfigError(str(error), where="search", hint=hint) from error
        best = state["best"]
        if not best["is_satisfied"]:
            raise ConfigError(f"no choice of formats found within {wanted:g} bits", where="search", hint=hint)
        self.facts["effective_bits"] = round(float(best["constraints"]["effective_bits"]), 4)
        chosen = Counter(str(choice).partition("(")[0] for choice in best["recipe"].values())
        log.info("formats chosen", effective_bits=self.facts["effective_bits"], groups=str(dict(chosen)))
        if (cache := kv_cache_config(self._recipe)) is not None:  # AutoQuantize leaves the cache out
            mtq.set_quantizer_by_cfg(model, cache["quant_cfg"])
            only_cache = [{"quantizer_name": "*", "enable": False}, *cache["quant_cfg"]]
            with mtq.set_quantizer_by_cfg_context(model, only_cache):
                mtq.calibrate(model, algorithm="max", forward_loop=passes)


def in_memory(model: Any) -> ModelInMemory:
    """What a quantized model of modelopt's answers, and by which scales it rounds what its layers read."""
    with mtq.set_quantizer_by_cfg_context(model, [{"quantizer_name": "*input_quantizer", "enable": False}]):
        logits = probe(model)
    scales = {}
    for name, layer in model.named_modules():
        quantizer = getattr(layer, "input_quantizer", None)
        if quantizer is not None and quantizer.is_enabled and quantizer.amax is not None:
            blocks = FP8_MAXIMUM if quantizer.num_bits == (2, 1) else 1.0  # whose own scales are FP8
            scales[name] = float(quantizer.amax) / quantizer.maxbound / blocks
    return ModelInMemory(logits, scales)


class CalibrationPasses:
    """What modelopt calls to send the calibration data through the model, once or several times.

    The largest batches come first: memory that is too small shows at once. The language model head is left out
    when it is not quantized: nothing that is calibrated depends on it.
    """

    def __init__(self, data: CalibrationSet, batch: int) -> None:
        self.batches = sorted(data.batches(batch), key=lambda batch: len(batch) * len(batch[0]), reverse=True)
        self._passes = 0

    def __call__(self, model: Any) -> None:
        """One pass over all batches."""
        self._passes += 1
        progress = Progress(f"calibration pass {self._passes}", len(self.batches), "batches")
        head = model.get_output_embeddings()
        whole = head is None or any(getattr(part, "is_enabled", False) for part in head.children())
        calibrated = model if whole else model.base_model
        for batch in self.batches:
            with torch.no_grad():
                calibrated(input_ids=_input_ids(model, batch), use_cache=False)
            progress.advance()


def _input_ids(model: Any, batch: Sequence[Tokens]) -> torch.Tensor:
    """Token ids [sequences, tokens] where the model expects them."""
    return torch.tensor(batch, device=model.get_input_embeddings().weight.device)


def _emptied(destination: Path) -> Path:
    """A directory to write in, without what an earlier attempt left there or at the destination."""
    partial = destination.with_name(f"{destination.name}.partial")
    for directory in (partial, destination):
        shutil.rmtree(directory, ignore_errors=True)
    return partial


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep modelopt's prints and progress bars out of the task log; its warnings still come through logging."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield
    for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
        log.debug("modelopt", line=line)

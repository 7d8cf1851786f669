"""modelopt: from a plain checkpoint and a recipe to an exported, quantized checkpoint, in steps that can be resumed.

    quantizer = Quantizer(source, recipe, calibration, dtype=torch.bfloat16, device="cuda", work=scratch)
    quantizer.calibrate(state)                  # writes the calibration's state
    quantizer.export(checkpoint, state)         # this process's model, or one made again from the state

An export needs the source and the state only, so it can be done by another process, on another machine.
"""

from __future__ import annotations

import contextlib
import gc
import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint

from llm_pipeline.artifacts.checkpoint_files import copy_companions
from llm_pipeline.artifacts.checkpoint_loading import empty_model
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.catalog.modelopt_recipes import ALGORITHMS
from llm_pipeline.catalog.output_head import with_head_kept
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization import autoquantize
from llm_pipeline.quantization.calibration import CalibrationSet
from llm_pipeline.quantization.calibration_passes import CalibrationPasses, forward
from llm_pipeline.quantization.calibration_state import (
    CalibrationState,
    capture,
    quantized_weights,
    recorded_rescaling,
    to_json,
)
from llm_pipeline.quantization.device_memory import (
    Placement,
    Shortage,
    choose_batch,
    devices,
    free_bytes,
    is_offloaded,
    is_out_of_memory,
    load_plain_model,
    out_of_memory_in,
    place_here,
    release_cached,
    sequence_bytes,
    shortage,
)
from llm_pipeline.quantization.divisibility import read_decoder_sizes, refuse_partial_blocks, refuse_uneven_ranks
from llm_pipeline.quantization.model_tensors import require_model_tensors
from llm_pipeline.quantization.modelopt_configs import (
    kv_cache_config,
    memory_growth,
    modelopt_config,
    only_rescales,
    refuse_unsupported,
    search_formats,
)
from llm_pipeline.quantization.parallel_shards import shards_written_in_parallel
from llm_pipeline.quantization.tensorrt_llm_checkpoint import (
    export_tensorrt_llm,
    refuse_unsupported_tensorrt_llm_checkpoint,
)

log = get_logger(__name__)

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
        work: Directory for what does not fit into memory.

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
        work: Path,
    ) -> None:
        """Refuse what cannot be done, before any work.

        Raises:
            Unsupported: The device cannot quantize this format, or it cannot be exported.
            IntegrityError: The checkpoint's tensors are not those of its model.
        """
        refuse_unsupported(recipe, device)
        require_model_tensors(source)
        refuse_partial_blocks(source, recipe)
        refuse_unsupported_tensorrt_llm_checkpoint(recipe)
        if recipe.tensorrt_llm_checkpoint:
            refuse_uneven_ranks(recipe, read_decoder_sizes(source))
        recipe = with_head_kept(recipe, empty_model(source))
        self._source, self._recipe, self._calibration = source, recipe, calibration
        self._dtype, self._device, self._work = dtype, device, work
        self._config = None if recipe.search else modelopt_config(recipe)
        self._model: Any = None
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, float | int | str | None] = {}

    @property
    def settings(self) -> Any:
        """The settings that modelopt gets, as JSON."""
        return to_json(search_formats(self._recipe) if self._config is None else self._config)

    def calibrate(self, directory: Path) -> None:
        """Calibrate, and write the state to a new directory.

        Out of memory, it is tried once more at half the batch.

        Raises:
            OutOfMemory: It did not fit then either.
        """
        data, asked = self._data(), self._recipe.calibration
        batch = None if asked is None or asked.batch_size == "auto" else asked.batch_size
        outcome = self._try_to_calibrate(data, batch)
        if isinstance(outcome, Shortage) and outcome.batch > 1:
            log.warning(
                "out of memory: trying again at half the batch", batch=outcome.batch // 2, tokens=outcome.tokens
            )
            outcome = self._try_to_calibrate(data, outcome.batch // 2)
        if isinstance(outcome, Shortage):
            raise outcome.error("calibration")
        with self._timed("save"):
            outcome.save(directory)

    def _data(self) -> CalibrationSet:
        if self._calibration is None:
            raise ConfigError("the recipe is calibrated, but no calibration data were given", where=self._recipe.name)
        return self._calibration

    def _try_to_calibrate(self, data: CalibrationSet, batch: int | None) -> CalibrationState | Shortage:
        self._release()
        with self._timed("load"):
            self._model = self._loaded(self._placement())
        device = devices(self._model)[0]
        allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        free, passes, needed = free_bytes(device), CalibrationPasses(data, 1), 0.0
        try:
            growth, longest = memory_growth(self._config), data.sequences[-1]
            one = sequence_bytes(lambda: forward(self._model, [longest]), devices(self._model))
            needed = growth * max(one.values(), default=0)
            fitting = choose_batch(one, growth, len(longest), len(data.sequences)) if batch is None else batch
            passes = CalibrationPasses(data, fitting)
            with self._timed("calibrate"), _quiet():
                state = self._calibrate_model(passes)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            failed = shortage(error, *passes.running, free, allocated, sequence=needed)
        else:
            self.facts["calibration_batch"] = len(passes.batches[0])
            return state
        self._release()
        return failed

    def _calibrate_model(self, passes: CalibrationPasses) -> CalibrationState:
        if self._config is None:
            return self._search(passes)
        with recorded_rescaling(self._model) as rescaled:
            mtq.quantize(self._model, self._config, passes)
        changed = {} if only_rescales(self._config) else quantized_weights(self._model)
        state = CalibrationState({self._recipe.weights: capture(self._model)}, rescaled, changed)
        if is_offloaded(self._model):  # it cannot be exported as it is; see `_ready`
            self._release()
        return state

    def _search(self, passes: CalibrationPasses) -> CalibrationState:
        seed = self._recipe.calibration.seed if self._recipe.calibration else 0
        scores, quantizers = autoquantize.search(self._model, self._recipe, passes, seed)
        self._release()
        if (cache := kv_cache_config(self._recipe)) is not None:
            self._model = self._loaded(self._placement())
            quantizers[autoquantize.KV_CACHE] = autoquantize.calibrate_kv_cache(self._model, cache, passes)
            self._release()
        return CalibrationState(quantizers, search=scores.model_dump(mode="json"))

    def export(self, destination: Path, state: Path | None) -> None:
        """Write the quantized checkpoint with all that belongs to it; `destination` is there only when it is whole.

        Args:
            destination: A new directory.
            state: The calibration's state; None for a recipe without calibration.

        Raises:
            OutOfMemory: The weights do not fit.
        """
        partial = _emptied(destination)
        model = self._ready(state)
        with (
            self._timed("export"),
            out_of_memory_in("export"),
            torch.inference_mode(),
            _quiet(),
            shards_written_in_parallel(),
        ):
            # modelopt misreads the dtype of a config that was saved before; it is always given here.
            export_hf_checkpoint(model, dtype=self._dtype, export_dir=partial, max_shard_size=_SHARD)
        self._release()
        copy_companions(self._source, partial)
        partial.rename(destination)

    def export_tensorrt_llm(self, destination: Path, state: Path | None) -> None:
        """Write the TensorRT-LLM checkpoint of the same model; `destination` is there only when it is whole.

        Raises:
            OutOfMemory: The weights do not fit.
            Unsupported: The model's architecture has none.
        """
        partial = _emptied(destination)
        model = self._ready(state)
        with self._timed("export_tensorrt_llm"), out_of_memory_in("export"), torch.inference_mode(), _quiet():
            export_tensorrt_llm(model, self._dtype, partial, self._recipe.tensorrt_llm_ranks)
        self._release()
        partial.rename(destination)

    def _ready(self, state: Path | None) -> Any:
        """The model that this process calibrated; or one that is made so again; exports spoil it."""
        if self._model is not None:
            return self._model
        held = None if state is None else CalibrationState.load(state)
        solution = self._solved(held) if held is not None else None
        with self._timed("load"):
            placement = self._placement()
            # modelopt's export does not rescale weights that are elsewhere: all of them go to the host's memory then
            model = self._loaded(Placement() if placement.offloads else placement)
        with self._timed("restore"), torch.no_grad(), _quiet():
            if held is None:
                mtq.quantize(model, self._config)
            elif solution is not None:
                autoquantize.apply(model, held.quantizers, solution)
            else:
                held.restore(model)
        return model

    def solved_algorithms(self, state: Path | None) -> dict[str, str | None] | None:
        """What a search chose for each layer, in modelopt's names, None for unquantized; None without a search."""
        if self._recipe.search is None or state is None:
            return None
        solution = self._solved(CalibrationState.load(state))
        names = dict[str, str](ALGORITHMS.items())
        return None if solution is None else {layer: names.get(kind) for layer, kind in solution.formats.items()}

    def _solved(self, state: CalibrationState) -> autoquantize.Solution | None:
        if self._recipe.search is None or state.search is None:
            return None
        with _quiet():
            solution = autoquantize.SearchScores.model_validate(state.search).solve(
                self._recipe.search.effective_bits[0]
            )
        self.facts["effective_bits"] = round(solution.effective_bits, 4)
        self.facts |= {f"layers_{name}": count for name, count in solution.layers_by_format.items()}
        layers = ", ".join(f"{count} {name}" for name, count in solution.layers_by_format.items())
        log.info("formats solved", effective_bits=self.facts["effective_bits"], layers=layers)
        return solution

    def _placement(self) -> Placement:
        return place_here(self._source, self._dtype) if self._device.startswith("cuda") else Placement()

    def _loaded(self, placement: Placement) -> Any:
        with out_of_memory_in("loading"):
            return load_plain_model(self._source, self._dtype, placement, self._work / "offload")

    def _release(self) -> None:
        self._model = None
        gc.collect()
        release_cached()

    @contextlib.contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        spent = round(time.monotonic() - began, 3)
        self.seconds[step] = round(self.seconds.get(step, 0.0) + spent, 3)
        log.info("step done", step=step, seconds=spent)


def _emptied(destination: Path) -> Path:
    """A directory to write in, without what an earlier attempt left."""
    partial = destination.with_name(f"{destination.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep modelopt's prints and progress bars out of the task log; its warnings still come through logging."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield
    for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
        log.debug("modelopt", line=line)

"""Let a calibration run out of GPU memory: another process leaves too little for its batch, or for half of it.

    python -m benchmarks.gpu.out_of_memory --work /tmp/bench    # a place that quantize_8b has left, or an empty one

What a batch needs is measured first, in a process of its own, on a GPU that is otherwise free; then the quantize
stage meets less than that. Prints one line a goal; exit code 1 when one is missed. See FIGURES.md for what is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import multiprocessing
import os
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.goals import goal
from benchmarks.gpu.held_memory import held
from benchmarks.gpu.quantize_stage import Bench, prepare, recipe, run_stage
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.quantization.device_memory import place, weight_bytes
from llm_pipeline.release.contract import StageFailure, StageResult

BATCH, TOKENS = 128, 512
"""Sequences that are asked for, in one forward pass: half of them need more than what a placement keeps free."""
_RETRY = "out of memory: trying again at half the batch"


@dataclass(frozen=True)
class Need:
    """What a calibration took, in bytes of the device.

    Attributes:
        allocated: Its tensors at their peak, the weights included: with less it cannot run.
        reserved: What the allocator took for them when nothing was scarce: with so much it runs.
        beside: The context and the kernels of its process.
    """

    allocated: int
    reserved: int
    beside: int


def main() -> int:
    """Measure, then run out of memory twice, then do as the error says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory with 60 GB free, which is kept")
    parser.add_argument("--figures", type=Path, help="write all figures to this file, as JSON")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(options.work.resolve() / "extensions"))
    bench = prepare(options.work, smoke=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        asked, half = process.submit(_needs, bench).result()
    weights = weight_bytes(bench.model, torch.bfloat16)
    for need, batch in ((asked, BATCH), (half, BATCH // 2)):
        print(f"{batch} x {TOKENS}: {need.allocated / 1e9:.2f} GB allocated, {need.reserved / 1e9:.2f} reserved")
    some = asked.beside + (half.reserved + asked.allocated) // 2
    little = asked.beside + weights + (half.allocated - weights) * 6 // 10
    if half.reserved >= asked.allocated or place(weights, {0: little - asked.beside}, 0).offloads:
        raise SystemExit("the batch is too small beside the weights: no room is left that is enough for half of it")
    goals = [*_half_fits(bench, some), *_too_little(bench, little)]
    if options.figures:
        rows = {"asked": dataclasses.asdict(asked), "half": dataclasses.asdict(half), "left": [some, little]}
        options.figures.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0 if all(goals) else 1


def _needs(bench: Bench) -> tuple[Need, Need]:
    """What the batch and half of it need."""
    from llm_pipeline.quantization.calibration import read_calibration
    from llm_pipeline.quantization.modelopt_quantizer import Quantizer

    needs = []
    torch.cuda.init()
    for batch in (BATCH, BATCH // 2):
        asked = QuantizationRecipe.model_validate(recipe("fp8", BATCH, TOKENS, batch_size=batch))
        data = read_calibration(bench.model, asked, bench.calibration.parent)
        torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory(dir=bench.place) as scratch:
            work = Path(scratch)
            quantizer = Quantizer(bench.model, asked, data, dtype=torch.bfloat16, device="cuda", work=work)
            quantizer.calibrate(work / "state")
        if quantizer.facts["calibration_batch"] != batch:
            raise RuntimeError(f"a batch of {batch} does not fit on this GPU: use a larger one")
        free, total = torch.cuda.mem_get_info()
        beside = total - free - torch.cuda.memory_reserved()
        needs.append(Need(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), beside))
        del quantizer
        gc.collect()
        torch.cuda.empty_cache()
    return needs[0], needs[1]


def _half_fits(bench: Bench, leave: int) -> list[bool]:
    outcome, retries = _quantize(bench, BATCH, leave, "half-fits")
    done = outcome.metrics.get("calibration_batch") if isinstance(outcome, StageResult) else outcome.error.message
    met = done == BATCH // 2 and retries == 1
    return [goal("half_the_batch", f"{done} after {retries} retry", f"{BATCH // 2} after 1 retry", met=met)]


def _too_little(bench: Bench, leave: int) -> list[bool]:
    before = _finished(bench)
    outcome, retries = _quantize(bench, BATCH, leave, "too-little")
    if isinstance(outcome, StageResult):
        return [goal("out_of_memory", "a result", "OutOfMemory, terminal", met=False)]
    error, left = outcome.error, sorted(_finished(bench) - before)
    print(f"{error.message} -> {error.hint}")
    said = re.search(r"calibration\.batch_size: (\d+)", error.hint)
    goals = [
        goal(
            "out_of_memory",
            f"{error.type}, {error.family}, after {retries} retry",
            "OutOfMemory, terminal, after 1 retry",
            met=(error.type, error.family, retries) == ("OutOfMemory", "terminal", 1),
        ),
        goal("left_behind", ", ".join(left) or "nothing", "nothing", met=not left),
    ]
    if said is None:
        return [*goals, goal("what_fits_is_said", "nothing", "a batch", met=False)]
    batch = int(said[1])
    outcome, retries = _quantize(bench, batch, leave, "as-said")
    how = "fits" if isinstance(outcome, StageResult) else outcome.error.message
    met = how == "fits" and retries == 0
    return [*goals, goal(f"batch_of_{batch}_as_said", f"{how}, {retries} retries", "fits, 0 retries", met=met)]


def _quantize(bench: Bench, batch: int, leave: int, name: str) -> tuple[StageResult | StageFailure, int]:
    """Quantize to FP8 with so much memory; returns how the stage ended, and how often it tried again."""
    log = bench.place / f"{name}.log"
    with held(0, leave) as left:
        outcome, seconds = run_stage(bench, recipe("fp8", BATCH, TOKENS, batch_size=batch), log)
    used = f"{left.most_used / 1e9:.2f} of {left.free / 1e9:.2f} GB used"
    made = outcome.artifacts["calibration"].digest[:12] if isinstance(outcome, StageResult) else "none"
    print(f"{name}: {used}, batch of {batch} asked, calibration {made}, {seconds:.1f} s", flush=True)
    return outcome, log.read_text(encoding="utf-8").count(_RETRY)


def _finished(bench: Bench) -> set[str]:
    """Artifacts of the store, and what the stage's work directories hold."""
    artifacts = (bench.place / "store" / "artifacts").glob("*/*")
    work = (bench.place / "work" / "quantize").glob("*/*")
    return {str(path.relative_to(bench.place)) for path in (*artifacts, *work)}


if __name__ == "__main__":
    sys.exit(main())

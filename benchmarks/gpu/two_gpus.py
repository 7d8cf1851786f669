"""Quantize a model that fits on neither of two GPUs, but on both: other processes leave each about its weights' size.

    python -m benchmarks.gpu.two_gpus --work /tmp/bench    # a place that quantize_8b has left, or an empty one

Prints what each GPU was used for and one line a goal; exit code 1 when one is missed. See FIGURES.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import torch

from benchmarks.goals import goal
from benchmarks.gpu.held_memory import held
from benchmarks.gpu.quantize_stage import prepare, recipe, run_stage
from llm_pipeline.quantization.device_memory import weight_bytes
from llm_pipeline.release.contract import StageFailure

SAMPLES, TOKENS, BATCH = 128, 512, 16


def main() -> int:
    """Quantize to FP8 over both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory with 60 GB free, which is kept")
    parser.add_argument("--figures", type=Path, help="write all figures to this file, as JSON")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(options.work.resolve() / "extensions"))
    bench = prepare(options.work, smoke=False)
    weights, log = weight_bytes(bench.model, torch.bfloat16), bench.place / "two-gpus.log"
    with held(0, weights) as first, held(1, weights) as second:
        outcome, seconds = run_stage(bench, recipe("fp8", SAMPLES, TOKENS, batch_size=BATCH), log)
    if isinstance(outcome, StageFailure):
        sys.stderr.write(log.read_text(encoding="utf-8")[-6000:])
        return 0 if goal("two_gpus", outcome.error.message, "a result", met=False) else 1
    used = [left.most_used / 1e9 for left in (first, second)]
    print(f"{weights / 1e9:.2f} GB of weights; used {used[0]:.2f} and {used[1]:.2f} GB of the GPUs, {seconds:.1f} s")
    print(json.dumps(dict(outcome.metrics), indent=1))
    print(*(line for line in log.read_text(encoding="utf-8").splitlines() if "model loaded" in line), sep="\n")
    if options.figures:
        rows = {"weights": weights, "used": used, "seconds": seconds, "metrics": dict(outcome.metrics)}
        options.figures.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    both = min(used) > weights / 4e9 and max(used) < weights / 1e9
    return 0 if goal("two_gpus", f"{used[0]:.1f} and {used[1]:.1f} GB", "a part on each", met=both) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Quantize a model of Llama-3-8B's shapes through the quantize stage, beside modelopt's own hf_ptq.py.

    python -m benchmarks.gpu.quantize_8b --hf-ptq .gpu_peers/hf_ptq/hf_ptq.py

All start from the same checkpoint and the same 512 texts of 512 tokens, with modelopt's CUDA extensions compiled
before. Ours is the stage's own process, which also verifies what it reads, validates and publishes what it made; the
peer is hf_ptq.py with its defaults, less the KV cache format that ours does not write; the floor is a script of the
libraries' own calls. See FIGURES.md for what is needed. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.goals import at_most
from benchmarks.gpu.processes import run_process, start_compilers, wait_for
from benchmarks.gpu.quantize_stage import Bench, prepare, recipe, run_stage
from llm_pipeline.release.contract import StageFailure

FORMATS = ("fp8", "nvfp4", "int8_smoothquant", "int4_awq")
FLOOR_RATIO = 1.25
PEER_RATIO = 0.8
_NOT_THE_WORK = ("import", "prepare", "validate")
"""Phases of the stage that the floor does not have: they count in its whole process only."""


@dataclass(frozen=True)
class Timed:
    """A process from start to end.

    Attributes:
        seconds: Wall time of the whole process.
        phases: Seconds by phase, as the process itself says.
        bytes: Size of the weights that it wrote.
        scales: The scales that it wrote, by name: the largest value of each.
    """

    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)
    bytes: int = 0
    scales: Mapping[str, float] = field(default_factory=dict)

    @property
    def work(self) -> float:
        """Loading, calibration and export."""
        return sum(seconds for phase, seconds in self.phases.items() if phase not in (*_NOT_THE_WORK, "plain forward"))


def main() -> int:
    """Run the benchmark."""
    options = _options()
    with contextlib.ExitStack() as until_done:
        place = options.work
        if place is None:
            place = Path(until_done.enter_context(tempfile.TemporaryDirectory(prefix="quantize-8b-")))
        place.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(place / "extensions"))
        compilers = start_compilers()
        bench = prepare(place, smoke=options.smoke)
        wait_for(compilers)
        figures = dict(_measure(bench, options))
    _report(figures, options.figures)
    return 0 if all(_goals(figures)) else 1


def _measure(bench: Bench, options: argparse.Namespace) -> Iterator[tuple[str, Timed]]:
    """The floor of FP8, then each format by us and by the peer."""
    if "fp8" in options.formats and not options.no_floor:
        yield "floor fp8", _floor(bench)
    for name in options.formats:
        yield f"ours {name}", _ours(bench, name, keep=options.keep)
        if options.hf_ptq and name in options.peers:
            yield f"hf_ptq {name}", _peer(bench, name, options.hf_ptq)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--hf-ptq", type=Path, help="examples/hf_ptq/hf_ptq.py of NVIDIA/Model-Optimizer")
    parser.add_argument("--peers", nargs="*", choices=FORMATS, default=("fp8", "int4_awq"), help="formats hf_ptq does")
    parser.add_argument(
        "--work", type=Path, help="directory with 60 GB free, which is kept: the next run there makes no model again"
    )
    parser.add_argument("--no-floor", action="store_true", help="leave out the libraries' own calls")
    parser.add_argument("--keep", action="store_true", help="keep our exports, as `ours-FORMAT` in the work directory")
    parser.add_argument("--figures", type=Path, help="write all figures to this file, as JSON")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, on any device: tries the script itself")
    return parser.parse_args()


def _ours(bench: Bench, name: str, *, keep: bool) -> Timed:
    log = bench.place / f"ours-{name}.log"
    outcome, seconds = run_stage(bench, recipe(name, bench.samples, bench.tokens), log)
    if isinstance(outcome, StageFailure):
        sys.stderr.write(log.read_text(encoding="utf-8")[-6000:])
        raise SystemExit(f"the stage ended with {outcome.error.type}: {outcome.error.message}")
    phases = {
        key.removeprefix("seconds_"): float(value or 0.0)
        for key, value in outcome.metrics.items()
        if key.startswith("seconds_")
    }
    export = bench.artifact(outcome.artifacts["checkpoint"])
    return _measured(f"ours {name}", export, seconds, phases, bench.place / f"ours-{name}" if keep else None)


def _peer(bench: Bench, name: str, script: Path) -> Timed:
    export = bench.place / "peer"
    command = [sys.executable, str(script.resolve()), "--pyt_ckpt_path", str(bench.model), "--qformat", name]
    command += ["--dataset", str(bench.calibration), "--calib_size", str(bench.samples)]
    command += ["--calib_seq", str(bench.tokens), "--kv_cache_qformat", "none", "--export_path", str(export)]
    _, seconds = run_process(command, bench.place / f"peer-{name}.log")
    return _measured(f"hf_ptq {name}", export, seconds, {})


def _floor(bench: Bench) -> Timed:
    export = bench.place / "floor"
    command = [sys.executable, "-m", "benchmarks.gpu.plain_ptq", str(bench.model), str(bench.calibration), str(export)]
    printed, seconds = run_process(command, bench.place / "floor.log")
    return _measured("floor fp8", export, seconds, json.loads(printed.splitlines()[-1]))


def _measured(
    name: str, export: Path, seconds: float, phases: Mapping[str, float], keep_as: Path | None = None
) -> Timed:
    """Look at an export, then remove it, unless it is to be kept: the disk need not hold all of them."""
    timed = Timed(seconds, phases, _weight_bytes(export), _scales(export))
    if keep_as:
        export.rename(keep_as)
    else:
        shutil.rmtree(export)
    print(_line(name, timed), flush=True)
    return timed


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def _scales(directory: Path) -> dict[str, float]:
    """The largest value of every scale in an export."""
    from safetensors import safe_open

    found = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                if name.endswith("_scale"):
                    found[name] = float(tensors.get_tensor(name).float().max())
    return found


def _report(figures: Mapping[str, Timed], file: Path | None) -> None:
    print(f"\n{'process':<24}{'whole, s':>10}{'work, s':>10}{'GB':>8}  phases")
    print("\n".join(_line(name, timed) for name, timed in figures.items()))
    for name in (name for name in FORMATS if f"hf_ptq {name}" in figures):
        ours, theirs = figures[f"ours {name}"].scales, figures[f"hf_ptq {name}"].scales
        shared = ours.keys() & theirs.keys()
        off = max((abs(ours[key] / theirs[key] - 1) for key in shared if theirs[key]), default=float("nan"))
        alone = len(ours.keys() ^ theirs.keys())
        print(f"{name}: {len(shared)} scales in both exports, {alone} in one only; most different by {off:.2%}")
    if file:
        rows = {name: {"seconds": t.seconds, "phases": dict(t.phases), "bytes": t.bytes} for name, t in figures.items()}
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _line(name: str, timed: Timed) -> str:
    phases = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in timed.phases.items())
    work = f"{timed.work:>10.1f}" if timed.phases else f"{'-':>10}"
    return f"{name:<24}{timed.seconds:>10.1f}{work}{timed.bytes / 1e9:>8.2f}  {phases}"


def _goals(figures: Mapping[str, Timed]) -> list[bool]:
    goals = []
    if "floor fp8" in figures:
        goals.append(at_most("fp8_to_floor", figures["ours fp8"].work / figures["floor fp8"].work, FLOOR_RATIO))
    for name in FORMATS:
        if f"hf_ptq {name}" in figures:
            ratio = figures[f"ours {name}"].seconds / figures[f"hf_ptq {name}"].seconds
            goals.append(at_most(f"{name}_to_hf_ptq", ratio, PEER_RATIO))
    return goals


if __name__ == "__main__":
    sys.exit(main())

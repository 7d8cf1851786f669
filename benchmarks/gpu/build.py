"""The build stage of a GPU target on a real GPU host, up to the call of TensorRT-LLM, which such a host may not have.

    python -m benchmarks.gpu.memory --work /tmp/bench     # leaves an FP8 export there
    python -m benchmarks.gpu.build --work /tmp/bench --target h200

Everything before that call is real: the driver's facts beside the target, the checkpoint's metadata, the LLM args in
the version's dialect, the process on the GPU. Where TensorRT-LLM is missing the stage must say so, and in the target's
place another GPU must be refused. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.goals import at_most, goal
from benchmarks.gpu.memory import export_file
from benchmarks.gpu.quantize_stage import Bench, prepare
from llm_pipeline.artifacts.items import ScoredItem, write_items
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.release.contract import OUTCOME, StageFailure, StageRequest, StageResult
from llm_pipeline.store import open_store

TARGETS = Path(__file__).resolve().parents[2] / "configs" / "targets"
OTHER_TARGET = "l40s"
REFUSAL_SECONDS = 10.0


def main() -> int:
    """Build for this host and for another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="directory that benchmarks.gpu.memory was run with")
    parser.add_argument("--target", default="h200", help="the target in configs/targets that this host is")
    options = parser.parse_args()
    bench = prepare(options.work, smoke=False)
    checkpoint = ArtifactRef.model_validate_json(export_file(bench.place, "fp8").read_bytes())
    here, _ = _build(bench, checkpoint, options.target)
    other, seconds = _build(bench, checkpoint, OTHER_TARGET)
    refused = isinstance(other, StageFailure) and "this host is not" in other.error.message
    return 0 if all([_goal_here(here), goal("other_host", str(refused), "refused", met=refused),
                     at_most("other_host_seconds", seconds, REFUSAL_SECONDS, "s")]) else 1  # fmt: skip


def _goal_here(outcome: StageResult | StageFailure) -> bool:
    if isinstance(outcome, StageResult):
        print(outcome.model_dump_json(indent=1))
        return goal("build", "built", "built, or TensorRT-LLM missing", met=True)
    said = outcome.error.message
    print(f"{outcome.error.type}: {said} -> {outcome.error.hint}")
    reached = "this environment has no TensorRT-LLM" in said
    return goal("build", outcome.error.type, "built, or TensorRT-LLM missing", met=reached)


def _build(bench: Bench, checkpoint: ArtifactRef, target: str) -> tuple[StageResult | StageFailure, float]:
    request = StageRequest(
        release_id=f"benchmark-{time.time_ns()}",
        stage="build",
        subject=target,
        config={"target": load_yaml(TARGETS / f"{target}.yaml", Target).model_dump(mode="json")},
        inputs={"checkpoint": checkpoint, "evaluation": _evaluation(bench)},
        store=bench.store,
        work_root=str(bench.place / "work"),
    )
    asked, answered = bench.place / "build.json", bench.place / "built.json"
    asked.write_text(request.model_dump_json())
    answered.unlink(missing_ok=True)
    command = [sys.executable, "-m", "llm_pipeline", "stage", "run", "build"]
    begun = time.perf_counter()
    subprocess.run([*command, "--request", str(asked), "--result", str(answered)], check=False)
    return OUTCOME.validate_json(answered.read_bytes()), time.perf_counter() - begun


def _evaluation(bench: Bench) -> ArtifactRef:
    """An evaluation with answers to check the loaded model by: random weights have none that are right."""
    with tempfile.TemporaryDirectory() as directory:
        item = ScoredItem(
            task="t", item_id=0, fingerprint="0", score=1.0, generative=True, prompt="w1 w2", completion="w3"
        )
        write_items(Path(directory), [item])
        return open_store(bench.store).publish("evaluation", Path(directory))


if __name__ == "__main__":
    sys.exit(main())

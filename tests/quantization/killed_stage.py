"""Kills the quantize stage with SIGKILL at a step of it, then runs it again; prints what came of both as JSON.

Both attempts are processes of their own, forked from this one after the slow imports, before any thread is started.

    python killed_stage.py DIRECTORY CHECKPOINT CALIBRATION
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.config.quantization import Calibration, QuantizationRecipe
from llm_pipeline.quantization import calibration_store, modelopt_quantizer, validation
from llm_pipeline.quantization.calibration_passes import CalibrationPasses
from llm_pipeline.quantization.calibration_state import CalibrationState
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.release.execute import execute
from llm_pipeline.stages.quantize import QuantizeConfig
from llm_pipeline.store import open_store
from llm_pipeline.store.lease import Lease

STEPS = {
    "calibrated, before it is saved": (CalibrationState, "save"),
    "saved, before it is published": (calibration_store, "publish_spared"),
    "while it is published": (LocalStore, "_place"),
    "published, before it is noted": (Lease, "conclude"),
    "while it is exported": (modelopt_quantizer, "copy_companions"),
    "exported, before it is validated": (validation, "validate_export"),
}


def kill(*_arguments: object, **_options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(owner: object, name: str) -> None:
    setattr(owner, name, kill)


def attempt(request: StageRequest, passes: Path, at: str | None, outcome: Path) -> int:
    """One attempt in a process of its own; returns how it ended."""
    if (pid := os.fork()) == 0:
        plain = CalibrationPasses.__call__

        def counted(self, model):
            with passes.open("a") as stream:
                stream.write("pass\n")
            plain(self, model)

        CalibrationPasses.__call__ = counted
        if at is not None:
            kill_at(*STEPS[at])
        result = execute(request)
        outcome.write_text(result.model_dump_json())
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(directory: Path, checkpoint: Path, calibration: Path) -> None:
    torch.set_num_threads(1)
    recipe = QuantizationRecipe(
        name="fp8",
        weights="fp8",
        calibration=Calibration(sources=("calibration/demo.jsonl",), samples=8, maximum_tokens=16, batch_size=8),
    )
    found = {}
    for number, at in enumerate(STEPS):
        root = directory / str(number)
        store = open_store(f"file://{root}/store")
        data = root / "data"
        data.mkdir(parents=True)
        (data / "demo.jsonl").write_bytes(calibration.read_bytes())
        inputs = {"checkpoint": store.publish("checkpoint", checkpoint), "calibration": store.publish("dataset", data)}
        request = StageRequest(
            release_id="r1", stage="quantize", subject="fp8", inputs=inputs, store=store.uri,
            config=QuantizeConfig(recipe=recipe, dtype="bfloat16").model_dump(mode="json"),
            work_root=str(root / "work"),
        )  # fmt: skip
        elsewhere = request.model_copy(update={"work_root": str(root / "another_machine")})
        last = at == "while it is exported"
        killed = attempt(request, root / "passes", at, root / "nothing")
        attempt(elsewhere if last else request, root / "passes", None, root / "outcome")
        outcome = json.loads((root / "outcome").read_text())
        found[at] = {
            "killed": killed,
            "passes": (root / "passes").read_text().count("pass"),
            "outcome": outcome["outcome"],
            "calibration": outcome.get("metrics", {}).get("calibration"),
            "checkpoint": outcome.get("artifacts", {}).get("checkpoint"),
            "error": outcome.get("error"),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

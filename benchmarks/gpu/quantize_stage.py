"""The quantize stage as a process, on a checkpoint of Llama-3-8B's shapes and calibration texts in a store."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.llama_words import write_calibration
from benchmarks.gpu.processes import make_checkpoint, run_process
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import StoreModel, store_settings
from llm_pipeline.release.contract import OUTCOME, StageFailure, StageRequest, StageResult
from llm_pipeline.store import open_store


@dataclass(frozen=True)
class Bench:
    """Where everything is.

    Attributes:
        place: Directory that everything is below.
        model: The checkpoint's directory, inside the store.
        calibration: The file of the texts, likewise.
        inputs: The checkpoint and the calibration texts as artifacts of the store.
        samples: Calibration texts.
        tokens: Tokens of each.
    """

    place: Path
    model: Path
    calibration: Path
    inputs: Mapping[str, ArtifactRef]
    samples: int
    tokens: int

    @property
    def store(self) -> StoreModel:
        """The store that the stage reads from and publishes to."""
        return store_settings(uri=f"file://{self.place / 'store'}")

    def artifact(self, ref: ArtifactRef) -> Path:
        """Where the store keeps an artifact."""
        return self.place / "store" / "artifacts" / ref.kind / ref.digest


def prepare(place: Path, *, smoke: bool) -> Bench:
    """Make model and texts and put them into a store, unless an earlier run has left them there."""
    samples, tokens = (16, 32) if smoke else (512, 512)
    store, kept = open_store(store_settings(uri=f"file://{place.resolve() / 'store'}")), place / "inputs.json"
    if not kept.exists():
        make_checkpoint(place / "model", smoke=smoke)
        (place / "texts").mkdir()
        write_calibration(place / "texts" / "calibration.jsonl", samples, tokens)
        begun = time.perf_counter()
        published = {"checkpoint": store.publish("checkpoint", place / "model")}
        published["calibration"] = store.publish("dataset", place / "texts")
        shutil.rmtree(place / "model")
        kept.write_text(json.dumps({name: ref.model_dump() for name, ref in published.items()}))
        print(f"stored in {time.perf_counter() - begun:.0f} s", flush=True)
    refs = {name: ArtifactRef.model_validate(ref) for name, ref in json.loads(kept.read_text()).items()}
    model, texts = store.fetch(refs["checkpoint"]), store.fetch(refs["calibration"])
    return Bench(place.resolve(), model, texts / "calibration.jsonl", refs, samples, tokens)


def recipe(weights: str, samples: int, tokens: int, **calibration: Any) -> dict[str, Any]:
    """A recipe that is calibrated on the first texts of the bench."""
    asked = {"sources": ["calibration.jsonl"], "samples": samples, "maximum_tokens": tokens, **calibration}
    return {"name": weights, "weights": weights, "calibration": asked}


def run_stage(bench: Bench, asked: Mapping[str, Any], log: Path) -> tuple[StageResult | StageFailure, float]:
    """Quantize by a recipe, all of the work; returns how the stage ended, and its process's wall time in seconds."""
    request = StageRequest(
        release_id=f"benchmark-{time.time_ns()}",
        stage="quantize",
        subject=asked["name"],
        config={"recipe": dict(asked), "dtype": "bfloat16"},
        inputs=dict(bench.inputs),
        store=bench.store,
        work_root=str(bench.place / "work"),
    )
    _forget(bench.place)
    request_file, result_file = bench.place / "request.json", bench.place / "result.json"
    request_file.write_text(request.model_dump_json())
    result_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "llm_pipeline", "stage", "run", "quantize"]
    command += ["--request", str(request_file), "--result", str(result_file)]
    _, seconds = run_process(command, log, ended=result_file.exists)
    return OUTCOME.validate_json(result_file.read_bytes()), seconds


def _forget(place: Path) -> None:
    """Remove what the store knows of earlier results."""
    for name in ("stages",):
        shutil.rmtree(place / "store" / name, ignore_errors=True)

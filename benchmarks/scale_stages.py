"""The stages of `benchmarks/scale.py`: the real stage process, with light work instead of a model's.

The process, its request, key, lease, publication, records, reuse, signals and the runner that finds it again are the
product's. `choose` is the product's stage, and the report writes the release's summary; the others publish a small
file of their model's own, and give a verdict where they are gates. What takes a GPU slot notes when it began and ended,
by the machine's clock, in a file of its own: no word of Airflow's enters that.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/airflow/stages_for_tests"))

import run_stage

from llm_pipeline.base.errors import Transient
from llm_pipeline.release import execute
from llm_pipeline.release.contract import Produced, StageContext, StageOutput, StageRequest
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Gpus

LONG_STAGE = "quantize"
LONG_SECONDS, SHORT_SECONDS = 40.0, (1.0, 3.0)
"""A stage of real size outlives the time in which Airflow notices a lost worker."""
REFUSED_MODEL = "m9"
"""Its accuracy gate says NO_GO."""
FLAKY_MODEL = "m4"
"""Its first build ends with a transient error."""


def run(context: StageContext) -> StageOutput:
    """Do a stage's light work, and note when it held its GPU."""
    request = context.request
    step = step_named(request.stage)
    model = request.release_id.partition("-")[0]
    if step is not None and step.gpus is Gpus.TAKEN:
        with Path(request.work_root, "gpu.jsonl").open("a", encoding="utf-8") as record:
            _note(record, request, "begun")
            seconds = LONG_SECONDS if request.stage == LONG_STAGE else random.uniform(*SHORT_SECONDS)  # noqa: S311
            time.sleep(seconds)
            if request.stage == "build" and model == FLAKY_MODEL and _first_time(Path(request.work_root, "flaky")):
                _note(record, request, "ended")
                raise Transient("the network, says the benchmark")
            _note(record, request, "ended")
    if request.stage == "resolve":
        return run_stage.resolve(context)
    if request.stage == "report":
        _summarize(context)
    plan = {"verdict": "NO_GO"} if request.stage == "accuracy" and model == REFUSED_MODEL else {}
    output = run_stage.output(context, plan)
    for produced in output.artifacts.values():
        _make_the_models_own(produced, model)
    return output


def _summarize(context: StageContext) -> None:
    from llm_pipeline.inspection.release_summaries import write_summary

    write_summary(context.store, context.request.release_id)


def _note(record: TextIO, request: StageRequest, what: str) -> None:
    fcntl.flock(record, fcntl.LOCK_EX)
    line = {"at": time.monotonic(), "pid": os.getpid(), "what": what}
    line |= {"stage": request.stage, "release": request.release_id.rpartition("-")[0].rpartition("-")[0]}
    record.write(json.dumps(line) + "\n")
    record.flush()
    fcntl.flock(record, fcntl.LOCK_UN)


def _first_time(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _make_the_models_own(produced: Produced, model: str) -> None:
    file = produced.directory / "file.txt"
    file.write_text(f"{model}: {file.read_text()}")


if __name__ == "__main__":
    run_stage.run = run
    execute.load_stage = run_stage.load_stage
    from llm_pipeline.release.execute import main

    raise SystemExit(main(sys.argv[1:]))

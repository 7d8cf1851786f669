"""The interpreter of the tests' deployment runs this instead of `-m llm_pipeline.stages`: the real stage process, whose
stages keep their names, configurations and keys but do no work. `script.json` in the work root tells how each ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.base.collector import spare_imports
from llm_pipeline.store.signed_documents import replace_document

spare_imports()  # as `python -m llm_pipeline.stages` does

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.release import execute
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput

GATES = ("baseline_gate", "accuracy", "staging", "served_accuracy", "load_test", "canary")
OUTPUTS = {
    "eval_data": ("eval_data", "eval_data"),
    "download": ("checkpoint", "checkpoint"),
    "baseline": ("evaluation", "evaluation"),
    "quantize": ("checkpoint", "checkpoint"),
    "accuracy": ("evaluation", "evaluation"),
    "build": ("engine", "engine"),
    "package": ("repository", "model_repository"),
}
REAL = ("choose",)
COMMIT = "0123456789abcdef0123456789abcdef01234567"

log = get_logger("tests.stage")
real_load_stage = execute.load_stage


def load_stage(name: str) -> Stage:
    stage = real_load_stage(name)
    return stage if name in REAL else dataclasses.replace(stage, run=run, tools=())


def run(context: StageContext) -> StageOutput:
    request = context.request
    plan = scripted(request)
    if plan.get("file"):
        with Path(plan["file"]).open("a") as marker:
            marker.write("started\n")
    log.info("working", stage=request.stage)
    log.warning("a warning of the stage", subject=request.subject)
    for _ in range(int(plan.get("seconds", 0) * 10)):
        time.sleep(0.1)
    heard = "hears" not in plan
    while "until" in plan and not Path(plan["until"]).exists():
        if not heard and (heard := Path(plan["hears"]).exists()):
            log.info("heard")
        time.sleep(0.1)
    if plan.get("hang") and not _tried_before(context):
        os.kill(os.getpid(), signal.SIGSTOP)
    if plan.get("error") == "terminal":
        raise ConfigError("the test asked for a terminal error", hint="nothing to do")
    if plan.get("error") == "transient" and not _tried_before(context):
        raise Transient("the test asked for one transient error")
    if request.stage == "resolve":
        return resolve(context)
    return output(context, plan)


def scripted(request) -> dict:
    script = Path(request.work_root) / "script.json"
    plans = json.loads(script.read_text()) if script.exists() else {}
    return plans.get(f"{request.stage}/{request.subject}".rstrip("/"), {})


def _tried_before(context: StageContext) -> bool:
    mark = Path(context.request.work_root) / f"tried.{context.request.stage}"
    there = mark.exists()
    mark.touch()
    return there


def output(context: StageContext, plan: dict) -> StageOutput:
    request = context.request
    artifacts = {}
    if request.stage in OUTPUTS:
        name, kind = OUTPUTS[request.stage]
        directory = context.workdir / "out"
        directory.mkdir(exist_ok=True)
        (directory / "file.txt").write_text(f"{request.stage} {request.subject}")
        artifacts[name] = Produced(kind=kind, directory=directory)
    if request.stage == "report":
        from llm_pipeline.release.record import report_name

        context.store.write_file(report_name(request.release_id), b"<!doctype html><h1>the report</h1>")
    judgement = None
    if request.stage in GATES:
        verdict = Verdict(plan.get("verdict", "GO"))
        fact = Evidence(name="a fact", verdict=verdict, measured=0.5, limit=0.1, unit="fraction", samples=7)
        judgement = judge(f"the test says {verdict}", [fact])
    metrics = {"bytes": 1000 + len(request.subject), **plan.get("metrics", {})}
    metrics |= {"phase": "rolled back"} if request.stage == "rollback" else {}
    return StageOutput(artifacts=artifacts, metrics=metrics, judgement=judgement)


def resolve(context: StageContext) -> StageOutput:
    from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
    from llm_pipeline.planning.memory import climbing_order
    from llm_pipeline.release.contract import PROMPTS_DATASET
    from llm_pipeline.release.newest import note_release
    from llm_pipeline.release.record import ReleaseRecord, release_record_name

    loaded = context.config.loaded
    release_id = f"{loaded.config.name}-{(context.config.revision or COMMIT)[:8]}-00000000"
    prompts = context.workdir / "prompts"
    prompts.mkdir(exist_ok=True)
    (prompts / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    file = HubFile(path="model.safetensors", size=1, sha256="0" * 64, blob_sha1="0" * 40)
    ref: ArtifactRef = context.store.publish("dataset", prompts)
    record = ReleaseRecord(
        release_id=release_id,
        release=loaded.release,
        deployment=loaded.deployment,
        model=PinnedModel(id=loaded.config.model.id, commit=COMMIT, files=(file,)),
        datasets={PROMPTS_DATASET: ref},
        ladders=dict.fromkeys((target.name for target in loaded.release.targets), climbing_order(loaded.release)),
        budget=loaded.config.budget,
        overrides=loaded.overrides,
        overridden_by=context.config.overridden_by,
        created_at=datetime.now(UTC),
    )
    replace_document(context.store, release_record_name(release_id), record.model_dump(mode="json"))
    note_release(context.store, record)
    if record.budget:
        from llm_pipeline.planning.plan import plan_release

        plan = plan_release(loaded.path, overrides=loaded.overrides, store_seconds=0, source_seconds=0)
        replace_document(context.store, f"releases/{release_id}/plan.json", plan.model_dump(mode="json"))
    metrics = scripted(context.request).get("metrics", {})
    return StageOutput(release_id=release_id, metrics={"release_id": release_id, **metrics})


if __name__ == "__main__":
    execute.load_stage = load_stage
    from llm_pipeline.release.execute import main

    raise SystemExit(main(sys.argv[1:]))

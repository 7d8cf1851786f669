"""What is computed again, and what a plan says of measured times, against releases that went through the store."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from in_process_runner import scripted_stages
from tiny_tokenizer import TOKENIZER

from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.planning.plan import Plan, plan_release
from llm_pipeline.planning.sources import History
from llm_pipeline.planning.stage_cost import planned_steps
from llm_pipeline.release import execute
from llm_pipeline.release.contract import StageContext, StageOutput, StageResult, Timings
from llm_pipeline.release.execute import load_stage
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release_progress import ReleaseProgress, resolve_request
from llm_pipeline.store import ArtifactStore, open_store

CONFIGS = Path(__file__).parents[2] / "configs"

SCRIPTED = scripted_stages()
REAL = ("resolve", "download", "choose")
BEFORE_STAGING = (
    "eval_data", "download", "baseline", "baseline_gate", "quantize", "accuracy", "choose", "build", "package",
)  # fmt: skip


class Releases:
    """Releases of the demo config from a directory: the real flow and store, stages that compute next to nothing."""

    def __init__(self, configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = configs / "releases" / "demo.yaml"
        self.verdicts = {"int4_naive": Verdict.NO_GO}
        self.release_id = ""
        self.ran: list[str] = []
        self.stopped_before = ""
        monkeypatch.setattr(execute, "load_stage", self._stage)

    @property
    def store(self) -> ArtifactStore:
        return open_store(f"file://{self.config.parents[2]}/.pipeline/store")

    def release(self) -> str:
        """Every stage before staging, in order; those that ran are in `ran`."""
        resolved = execute.execute(resolve_request(load_release(self.config)))
        assert isinstance(resolved, StageResult), resolved
        flow = ReleaseProgress(self.store, read_release_record(self.store, resolved.release_id))
        for stage, subject in planned_steps(flow.release):
            if stage == self.stopped_before:
                break
            if stage not in BEFORE_STAGING or (stage in ("quantize", "accuracy") and flow.passed_over(subject)):
                continue
            outcome = execute.execute(flow.request(stage, subject))
            assert isinstance(outcome, StageResult), outcome
            if not outcome.reused:
                self.ran.append(f"{stage} {subject}".rstrip())
        return resolved.release_id

    def plan(self) -> Plan:
        return plan_release(self.config, store_seconds=60)

    def _stage(self, name: str) -> Any:
        stage = load_stage(name)
        return stage if name in REAL else dataclasses.replace(stage, run=self._run, tools=())

    def _run(self, context: StageContext[Any]) -> StageOutput:
        verdict = self.verdicts.get(context.request.subject or context.request.stage, Verdict.GO)
        made = SCRIPTED.output(context, {"verdict": verdict})
        for produced in made.artifacts.values():
            (produced.directory / "file.txt").write_text(context.key)  # computed anew, it is another one
        return made


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """One release that went well, made once; a test works on a copy."""
    root = tmp_path_factory.mktemp("first")
    model = root / "model"
    model.mkdir()
    header = json.dumps({"weight": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    (model / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "eos_token_id": 2}'
    )
    (model / "tokenizer.json").write_bytes(TOKENIZER)
    shutil.copytree(CONFIGS, root / "configs")
    config, deployment = root / "configs/releases/demo.yaml", root / "configs/deployments/local.yaml"
    config.write_text(config.read_text().replace("model:\n", f"model:\n  source: file://{model}\n", 1))
    text = deployment.read_text().replace("../../.envs/control/bin/python", sys.executable)
    deployment.write_text(text.replace("../../.envs/model/bin/python", sys.executable))
    with pytest.MonkeyPatch.context() as patch:
        made = Releases(root / "configs", patch)
        made.release_id = made.release()
        yield made


@pytest.fixture
def configs(first: Releases, tmp_path: Path) -> Path:
    root = first.config.parents[2]
    shutil.copytree(root / ".pipeline", tmp_path / ".pipeline")
    return Path(shutil.copytree(root / "configs", tmp_path / "configs"))


@pytest.fixture
def releases(configs: Path, first: Releases, monkeypatch: pytest.MonkeyPatch) -> Releases:
    copied = Releases(configs, monkeypatch)
    copied.release_id = first.release_id
    return copied


CHANGES = [
    ("releases/demo.yaml", "minimum: 0.85", "minimum: 0.84", "baseline_gate"),
    ("policies/demo.yaml", "margin: 0.015", "margin: 0.014", "accuracy int4_naive"),
    ("quantization/int4_awq.yaml", "samples: 256", "samples: 255", "quantize int4_awq"),
    ("targets/cpu.yaml", "maximum_sequences: 32", "maximum_sequences: 31", "build cpu"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_config_computes_its_stage_again_and_the_old_one_nothing(releases: Releases, edit, change):
    file, old, new, step = change
    edit(file, old, new)
    releases.release()
    assert releases.ran[0] == step
    edit(file, new, old)
    releases.ran.clear()
    releases.release()
    assert releases.ran == []


def test_a_changed_data_file_is_another_input(releases: Releases, configs: Path):
    path = configs / "calibration" / "demo.jsonl"
    path.write_text(path.read_text() + '{"text": "one more"}\n')
    releases.release()
    assert releases.ran[:2] == ["quantize int4_awq", "accuracy int4_awq"]


def test_a_new_config_of_the_same_model_reuses_its_download_and_baseline(releases: Releases):
    releases.config = releases.config.with_name("other.yaml")
    text = releases.config.with_name("demo.yaml").read_text()
    releases.config.write_text(text.replace("[int4_naive, int4_awq, fp8]", "[fp8]"))
    assert {step.basis for step in releases.plan().stages} <= {"model", None}
    releases.release()
    assert releases.ran[0] == "quantize fp8"


def test_what_was_measured_counts_and_not_the_time_of_a_reuse(releases: Releases, edit):
    edit("targets/cpu.yaml", "maximum_sequences: 32", "maximum_sequences: 31")
    releases.release()
    edit("targets/cpu.yaml", "maximum_sequences: 31", "maximum_sequences: 30")
    costs = {f"{step.stage} {step.subject}".rstrip(): step for step in releases.plan().stages}
    assert (costs["build cpu"].basis, costs["build cpu"].measurements) == ("measured", 2)
    assert (costs["download"].basis, costs["download"].measurements) == ("measured", 1)
    assert (costs["load_test cpu"].basis, costs["load_test cpu"].seconds) == ("model", 48.0)
    assert costs["served_accuracy cpu"].basis is None


@pytest.mark.parametrize(("verdict", "counted"), [(Verdict.GO, (30.0,)), (Verdict.NO_GO, ()), (None, (30.0,))])
def test_a_canary_that_was_rolled_back_tells_no_time(verdict: Verdict | None, counted: tuple[float, ...]):
    judgement = verdict and judge("", [Evidence(name="errors", verdict=verdict, measured=0.0, samples=9)])
    result = StageResult(
        release_id="r", stage="canary", subject="cpu:5", key="k", judgement=judgement,
        timings=Timings(started_at=datetime(2026, 11, 1, tzinfo=UTC), total_seconds=30.0),
    )  # fmt: skip
    assert History(({("canary", "cpu:5"): result},)).seconds(("canary", "cpu:5")) == counted


def test_a_store_that_hangs_is_not_waited_for(releases: Releases, monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()
    monkeypatch.setattr("llm_pipeline.planning.sources.open_store", lambda _store: released.wait(60))
    plan = plan_release(releases.config, store_seconds=0.05)
    released.set()
    assert any("no answer within 0.05 s" in line for line in plan.warnings)

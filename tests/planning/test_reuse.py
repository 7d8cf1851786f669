"""What a plan says of reuse and of measured times, against releases that really went through the store."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizer import TOKENIZER

from llm_pipeline.base.verdict import Evidence, Verdict, judge
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.loadtest.workload import locate_prompts
from llm_pipeline.planning.plan import Plan, format_plan, plan_release
from llm_pipeline.planning.reuse import History, PastRelease, expected_datasets
from llm_pipeline.planning.stage_cost import planned_steps
from llm_pipeline.release import execute
from llm_pipeline.release.contract import Produced, StageContext, StageOutput, StageResult
from llm_pipeline.release.flow import release_flow, stage_names
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import read_release_record
from llm_pipeline.release.registry import load_stage
from llm_pipeline.release_progress import ReleaseProgress, resolve_request
from llm_pipeline.store import ArtifactStore, open_store

CONFIGS = Path(__file__).parents[2] / "configs"

OUTPUTS = {
    "eval_data": ("eval_data", "eval_data"),
    "baseline": ("evaluation", "evaluation"),
    "quantize": ("checkpoint", "checkpoint"),
    "accuracy": ("evaluation", "evaluation"),
    "build": ("engine", "engine"),
    "package": ("repository", "model_repository"),
}
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

    def plan(self, **overrides: object) -> Plan:
        return plan_release(self.config, store_seconds=60, overrides=Overrides.of(overrides))

    def _stage(self, name: str) -> Any:
        stage = load_stage(name)
        return stage if name in REAL else dataclasses.replace(stage, run=self._run, tools=())

    def _run(self, context: StageContext[Any]) -> StageOutput:
        request, artifacts, judgement = context.request, {}, None
        if request.stage in OUTPUTS:
            name, kind = OUTPUTS[request.stage]
            directory = context.workdir / "out"
            directory.mkdir(exist_ok=True)
            (directory / "file.txt").write_text(context.key)
            artifacts[name] = Produced(kind=kind, directory=directory)
        if request.stage in ("baseline_gate", "accuracy", "load_test"):
            verdict = self.verdicts.get(request.subject or request.stage, Verdict.GO)
            fact = Evidence(name="a fact", verdict=verdict, measured=0.5, limit=0.1, unit="fraction", samples=7)
            judgement = judge(f"the test says {verdict}", [fact])
        return StageOutput(artifacts=artifacts, metrics={"bytes": 1000}, judgement=judgement)


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


def states(plan: Plan) -> dict[str, tuple[str, str]]:
    return {
        f"{step.stage} {step.subject}".rstrip(): (step.reuse.outcome, step.reuse.why)
        for step in plan.stages
        if step.reuse
    }


def due(plan: Plan) -> list[str]:
    return [name for name, (outcome, _) in states(plan).items() if outcome == "computed" and name.split()[0] in (
        BEFORE_STAGING
    )]  # fmt: skip


def test_a_first_release_computes_everything(releases: Releases, configs: Path):
    shutil.rmtree(configs.parent / ".pipeline")
    plan = releases.plan()
    assert plan.compared_with is None
    assert states(plan)["quantize fp8"] == ("computed", "never ran")
    assert states(plan)["resolve"] == ("always", "")
    assert plan.total.gpu_hours == {}
    assert "quantize         int4_naive, int4_awq, fp8" in format_plan(plan)


def test_after_a_release_everything_is_reused_that_does_not_act_on_the_world(releases: Releases):
    first, plan = releases.release_id, releases.plan()
    found = states(plan)
    assert due(plan) == []
    assert found["download"] == ("reused", f"made by {first}")
    assert found["accuracy int4_naive"] == ("reused", f"NO_GO, made by {first}")
    assert found["accuracy int4_awq"] == ("reused", f"GO, made by {first}")
    assert found["quantize fp8"] == ("not needed", "a cheaper recipe passed (int4_awq)")
    assert found["choose cpu"][0] == found["package cpu"][0] == "reused"
    assert found["staging cpu"] == found["canary cpu:100"] == ("always", "")
    assert found["load_test cpu"] == ("computed", "never ran")
    assert plan.compared_with is not None
    assert plan.compared_with.release_id == first
    releases.ran.clear()
    releases.release()
    assert releases.ran == []


def test_the_foreseen_data_sets_are_those_that_resolving_publishes(releases: Releases):
    (releases.config.parents[1] / "tasks" / "demo" / "__pycache__").mkdir()
    for name in (".notes", "__pycache__/x.pyc"):
        (releases.config.parents[1] / "tasks" / "demo" / name).touch()
    record = read_release_record(releases.store, releases.release())
    expected = expected_datasets(load_release(releases.config), record)
    assert expected == record.datasets
    assert set(expected) == {"prompts", "tasks", "calibration.int4_awq", "calibration.fp8"}
    assert locate_prompts(record.release.workload, releases.store.fetch(expected["prompts"])).name == "demo.jsonl"


CHANGES = [
    ("releases/demo.yaml", "minimum: 0.85", "minimum: 0.84", "baseline_gate", "config expected.demo_choice changed"),
    ("policies/demo.yaml", "margin: 0.015", "margin: 0.014", "accuracy int4_naive", "config policy.margin changed"),
    (
        "quantization/int4_awq.yaml",
        "samples: 256",
        "samples: 255",
        "quantize int4_awq",
        "config recipe.calibration changed",
    ),
    ("targets/cpu.yaml", "maximum_sequences: 32", "maximum_sequences: 31", "build cpu", "config target.limits changed"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_config_computes_its_stage_and_what_follows_as_the_flow_then_does(releases: Releases, edit, change):
    file, old, new, step, why = change
    edit(file, old, new)
    plan = releases.plan()
    assert states(plan)[step] == ("computed", why)
    assert why in format_plan(plan)
    releases.ran.clear()
    releases.release()
    assert releases.ran[0] == due(plan)[0] == step
    assert set(releases.ran) <= set(due(plan))


def test_a_changed_data_file_is_an_input_that_changed(releases: Releases, configs: Path):
    path = configs / "calibration" / "demo.jsonl"
    path.write_text(path.read_text() + '{"text": "one more"}\n')
    found = states(releases.plan())
    assert found["quantize int4_awq"] == ("computed", "input calibration changed")
    assert found["accuracy int4_awq"] == ("computed", "quantize is computed")
    assert found["baseline"][0] == "reused"


def test_what_an_older_release_computed_is_found_when_the_config_is_as_it_was(releases: Releases, edit):
    edit("quantization/int4_awq.yaml", "samples: 256", "samples: 255")
    releases.release()
    edit("quantization/int4_awq.yaml", "samples: 255", "samples: 256")
    assert states(releases.plan())["quantize int4_awq"] == ("reused", f"made by {releases.release_id}")


def test_a_new_config_of_the_same_model_reuses_its_download_and_baseline(releases: Releases, configs: Path):
    other = configs / "releases" / "other.yaml"
    other.write_text(releases.config.read_text().replace("[int4_naive, int4_awq, fp8]", "[fp8]"))
    plan = plan_release(other, store_seconds=60)
    assert states(plan)["download"] == states(plan)["baseline"] == ("reused", f"made by {releases.release_id}")
    assert states(plan)["quantize fp8"] == ("computed", "never ran")
    assert {step.cost.basis for step in plan.stages} <= {"model", None}


def test_another_revision_is_not_compared_with_the_commit_of_an_old_one(releases: Releases, edit):
    edit("releases/demo.yaml", "revision: main", "revision: v2")
    plan = releases.plan()
    assert plan.compared_with is None
    assert states(plan)["download"] == ("computed", "never ran")


def test_a_run_of_another_revision_is_not_compared_with_the_commit_of_an_old_one_but_measured_times_count(
    releases: Releases,
):
    plan = releases.plan(revision="v2")
    assert (plan.revision, plan.compared_with, plan.overrides) == ("v2", None, "revision v2")
    assert states(plan)["download"] == ("computed", "never ran")
    assert {step.cost.basis for step in plan.stages if step.stage == "download"} == {"measured"}


def test_a_run_of_some_recipes_has_the_others_in_no_step_and_reuses_all_else(releases: Releases):
    plan = releases.plan(recipes=["int4_naive", "int4_awq"], strategy="every")
    tried = {step.subject for step in plan.stages if step.stage == "quantize"}
    assert tried == {"int4_naive", "int4_awq"}
    assert plan.overrides == "recipes int4_naive, int4_awq; ladder strategy every"
    assert (
        states(plan)["baseline"] == states(plan)["quantize int4_naive"] == ("reused", f"made by {releases.release_id}")
    )


def test_a_load_test_that_decided_nothing_is_measured_again(releases: Releases):
    flow = ReleaseProgress(releases.store, read_release_record(releases.store, releases.release_id))
    request = flow.request("load_test", "cpu").model_copy(update={"store": releases.store.uri})
    foreseen = []
    for verdict in (Verdict.INCONCLUSIVE, Verdict.GO):
        releases.verdicts["cpu"] = verdict
        assert isinstance(execute.execute(request), StageResult)
        foreseen.append(states(releases.plan())["load_test cpu"])
    assert foreseen == [
        ("computed", f"undecided before: INCONCLUSIVE, made by {releases.release_id}"),
        ("reused", f"GO, made by {releases.release_id}"),
    ]


def test_an_artifact_that_was_removed_is_made_again(releases: Releases):
    flow = ReleaseProgress(releases.store, read_release_record(releases.store, releases.release_id))
    releases.store.remove(flow.artifact("build", "cpu", "engine"))
    plan = releases.plan()
    assert states(plan)["build cpu"] == ("computed", "its artifact is no longer in the store")
    assert states(plan)["package cpu"] == ("computed", "build is computed")


def test_a_build_for_a_gpu_tells_nothing_of_what_compiles_for_a_cpu(releases: Releases):
    record = read_release_record(releases.store, releases.release_id)
    result = ReleaseProgress(releases.store, record).result("build", "cpu")
    on_gpu, on_cpu = result.model_copy(update={"tools": {}}), result.model_copy(update={"tools": {"openvino": "1"}})
    history = History("demo", (PastRelease(record, {("build", "a-gpu"): on_gpu, ("build", "cpu"): on_cpu}),))
    assert history.tools("build", ("openvino",)) == {"openvino": "1"}
    assert history.tools("build", ()) == {}


def test_where_no_recipe_passed_nothing_after_the_choice_is_reached(releases: Releases, configs: Path):
    shutil.rmtree(configs.parent / ".pipeline")
    releases.verdicts |= {"int4_awq": Verdict.NO_GO, "fp8": Verdict.NO_GO}
    releases.stopped_before = "build"
    releases.release()
    found = states(releases.plan())
    assert found["choose cpu"][1].startswith("NO_GO, made by ")
    assert found["build cpu"] == ("not reached", "no recipe passed for cpu")


def test_behind_a_baseline_that_was_refused_nothing_is_reached(releases: Releases, configs: Path):
    shutil.rmtree(configs.parent / ".pipeline")
    releases.verdicts["baseline_gate"] = Verdict.ANOMALOUS
    releases.stopped_before = "quantize"
    releases.release()
    found = states(releases.plan())
    assert found["baseline_gate"][1].startswith("ANOMALOUS, made by ")
    assert {found[step] for step in ("quantize fp8", "accuracy fp8", "choose cpu", "load_test cpu")} == {
        ("not reached", "the baseline gate said ANOMALOUS")
    }


def test_what_was_measured_counts_and_not_the_time_of_a_reuse(releases: Releases, edit):
    edit("targets/cpu.yaml", "maximum_sequences: 32", "maximum_sequences: 31")
    releases.release()
    edit("targets/cpu.yaml", "maximum_sequences: 31", "maximum_sequences: 30")
    costs = {f"{step.stage} {step.subject}".rstrip(): step.cost for step in releases.plan().stages}
    assert (costs["build cpu"].basis, costs["build cpu"].measurements) == ("measured", 2)
    assert (costs["download"].basis, costs["download"].measurements) == ("measured", 1)
    assert (costs["load_test cpu"].basis, costs["load_test cpu"].seconds) == ("model", 48.0)
    assert costs["served_accuracy cpu"].basis is None


def test_what_is_reused_is_not_in_the_sum(releases: Releases):
    plan = releases.plan()
    names = [f"{step.stage} {step.subject}".rstrip() for step in plan.stages if step.reuse and step.reuse.outcome in (
        "computed", "always"
    )]  # fmt: skip
    costs = {f"{step.stage} {step.subject}".rstrip(): step.cost for step in plan.stages}
    assert plan.total.seconds == pytest.approx(sum(costs[name].seconds or 0 for name in names))
    assert plan.total.seconds < sum(cost.seconds or 0 for cost in costs.values())
    assert set(plan.total.not_known) == {name for name in names if costs[name].seconds is None} - {"approve"}


def test_only_stages_that_act_on_the_world_are_named_so():
    acting = {name for name in stage_names() if not load_stage(name).reusable}
    assert acting == {step.name for step in release_flow() if step.is_stage and not step.reusable}


def test_a_store_that_hangs_is_not_waited_for(releases: Releases, monkeypatch: pytest.MonkeyPatch):
    released = threading.Event()
    monkeypatch.setattr("llm_pipeline.planning.plan.open_store", lambda _store: released.wait(60))
    plan = plan_release(releases.config, store_seconds=0.05)
    released.set()
    assert any("no answer within 0.05 s" in line for line in plan.warnings)

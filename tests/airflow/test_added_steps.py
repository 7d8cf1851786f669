"""A package adds a stage and a question by entry points alone, and every reader of the flow has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.flow import ReleaseProgress
from llm_pipeline.local_run import LocalRun
from llm_pipeline.planning.stage_cost import planned_steps, step_costs
from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.reference import reference
from llm_pipeline.release.registry import load_stage
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.failures import flow_order

PACKAGE = """
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.questions import Question
from llm_pipeline.release.contract import Stage, StageOutput
from llm_pipeline.release.flow import TARGETS
from llm_pipeline.release.step import Kind, Place, Scope, Step

SMOKE = Step(
    name="smoke", title="Smoke", words="Asks the staged server one thing.", module="smoke_release",
    scope=Scope.TARGET, group=TARGETS, after=("staging",), before=("served_accuracy",), ends=Scope.TARGET,
    place=Place.TARGET_HOST,
)
SIGN = Step(
    name="sign_off", title="Sign off", words="Asks whoever answers for the product.", kind=Kind.QUESTION,
    asks="smoke_release:question", after=("approve",), before=("approve_step",),
)


class SmokeConfig(ConfigModel):
    target: str


def question(flow, targets):
    line = f"Does the product want {', '.join(targets)}?"
    return Question(line=line, title=line, body=line, declined="the product does not want it", open="nobody answered")


def request(flow, subject):
    return SmokeConfig(target=subject), {"repository": flow.artifact("package", subject, "repository")}


STAGE = Stage(
    name="smoke", version=1, config=SmokeConfig, request=request, run=lambda context: StageOutput(),
    environment="control", publishes=False,
)
"""


@pytest.fixture
def smoke_release(tmp_path: Path, monkeypatch):
    """The package, installed as pip leaves it."""
    site = tmp_path / "site-packages"
    metadata = site / "smoke_release-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "smoke_release.py").write_text(PACKAGE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: smoke-release\nVersion: 1.0\n")
    steps = "smoke = smoke_release:SMOKE\nsign_off = smoke_release:SIGN\n"
    (metadata / "entry_points.txt").write_text(f"[llm_pipeline.steps]\n{steps}")
    monkeypatch.syspath_prepend(str(site))
    release_flow.cache_clear()
    yield
    release_flow.cache_clear()
    sys.modules.pop("smoke_release", None)


@pytest.fixture
def project(tmp_path_factory, make_project):
    return make_project(tmp_path_factory.mktemp("release"), approval=True)


def test_the_dag_draws_them(smoke_release, project):
    dag = release_dag(project.config)
    assert dag.get_task("targets.smoke").upstream_task_ids == {"targets.staging"}
    assert dag.get_task("targets.served_accuracy").upstream_task_ids >= {"targets.smoke"}
    assert dag.get_task("sign_off").upstream_task_ids == {"approve"}
    assert dag.get_task("promotion_1.canary_5").upstream_task_ids == {"sign_off"}
    second = dag.get_task("promotion_2.canary_5")
    assert second.upstream_task_ids == {"promotion_1.rollback", "sign_off"}
    assert second.turn.needs == ("approve", "sign_off")
    assert second.turn.last_gates == ("targets.load_test",)
    assert dag.get_task("sign_off").task_display_name == "Sign off"


def test_the_plan_has_them(smoke_release, project):
    loaded = load_release(project.config)
    steps = list(planned_steps(loaded.release))
    assert steps.index(("smoke", "cpu-b")) == steps.index(("staging", "cpu-b")) + 1
    assert steps.index(("sign_off", "")) == steps.index(("approve", "")) + 1
    assert ("smoke", "cpu-a") in step_costs(loaded, steps, None, {})


def test_the_run_without_airflow_and_the_report_have_them(smoke_release, project, in_process):
    asked: list[str] = []
    project.script()
    in_process.ran.clear()
    assert LocalRun(project.config, approve=lambda line: not asked.append(line)).run() is Verdict.GO
    assert in_process.ran.count(("smoke", "cpu-a")) == 1
    assert asked[-1] == "Does the product want cpu-a, cpu-b?"
    flow = ReleaseProgress.open(load_release(project.config).deployment, "tiny-01234567-00000000")
    report = collect(flow.store, flow.record.release_id)
    assert {(run.stage, run.subject) for run in report.stages} >= {("smoke", "cpu-a"), ("smoke", "cpu-b")}
    assert flow_order("staging") < flow_order("smoke") < flow_order("served_accuracy")


def test_a_no_to_an_added_question_moves_no_traffic(smoke_release, project, in_process):
    project.script()
    in_process.ran.clear()
    run = LocalRun(project.config, approve=lambda line: "product" not in line)
    assert run.run() is Verdict.NO_GO
    assert "canary" not in {stage for stage, _ in in_process.ran}


@pytest.mark.parametrize("said", ['environment="model"', 'environment="control", reusable=False'])
def test_a_stage_that_contradicts_its_step_is_refused(smoke_release, said):
    module = Path(sys.path[0]) / "smoke_release.py"
    module.write_text(PACKAGE.replace('environment="control"', said))
    with pytest.raises(ConfigError, match="stage smoke declares"):
        load_stage("smoke")


def test_the_reference_has_them(smoke_release):
    text = reference(release_flow())
    assert "## `smoke`: Smoke\n\nAsks the staged server one thing." in text
    assert "## `sign_off`: Sign off" in text

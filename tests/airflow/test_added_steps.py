"""A package adds stages by entry points alone, and every reader of the flow has them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.local_run import LocalRun
from llm_pipeline.planning.stage_cost import planned_steps
from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.reporting.collect import collect
from llm_pipeline.reporting.headline import flow_order

PACKAGE = """
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.release.contract import Stage, StageOutput
from llm_pipeline.release.flow import TARGETS
from llm_pipeline.release.step import Machine, Scope, Start, Step

SMOKE = Step(
    name="smoke", title="Smoke", words="Asks the staged server one thing.", module="smoke_release",
    scope=Scope.TARGET, group=TARGETS, after=("staging",), before=("served_accuracy",), ends=Scope.TARGET,
    machine=Machine.TARGET_HOST,
)
SIGN = Step(
    name="sign_off", title="Sign off", words="Asks the product's own checklist.", module="smoke_sign",
    after=("load_test",), before=("approve",), start=Start.ANY_GOOD, ends=Scope.RELEASE,
)


class SmokeConfig(ConfigModel):
    target: str


def request(flow, subject):
    return SmokeConfig(target=subject), {"repository": flow.artifact("package", subject, "repository")}


STAGE = Stage(
    name="smoke", version=1, config=SmokeConfig, request=request, run=lambda context: StageOutput(),
    publishes=False,
)
"""


@pytest.fixture
def smoke_release(tmp_path: Path, monkeypatch):
    """The package, installed as pip leaves it."""
    site = tmp_path / "site-packages"
    metadata = site / "smoke_release-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "smoke_release.py").write_text(PACKAGE)
    sign = PACKAGE.replace('name="smoke", version', 'name="sign_off", version')
    request = sign.index("def request"), sign.index("STAGE = ")
    once = "def request(flow, subject):\n    return SmokeConfig(target='all'), {}\n\n\n"
    (site / "smoke_sign.py").write_text(sign[: request[0]] + once + sign[request[1] :])
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: smoke-release\nVersion: 1.0\n")
    steps = "smoke = smoke_release:SMOKE\nsign_off = smoke_release:SIGN\n"
    (metadata / "entry_points.txt").write_text(f"[llm_pipeline.steps]\n{steps}")
    monkeypatch.syspath_prepend(str(site))
    release_flow.cache_clear()
    yield
    release_flow.cache_clear()
    for name in ("smoke_release", "smoke_sign"):
        sys.modules.pop(name, None)


@pytest.fixture
def project(tmp_path_factory, make_project):
    return make_project(tmp_path_factory.mktemp("release"), approval=True)


def test_the_dag_draws_them(smoke_release, project):
    dag = release_dag(project.config)
    assert dag.get_task("targets.smoke").upstream_task_ids == {"targets.staging"}
    assert dag.get_task("targets.served_accuracy").upstream_task_ids >= {"targets.smoke"}
    assert dag.get_task("sign_off").upstream_task_ids == {"targets.load_test"}
    assert dag.get_task("approve").upstream_task_ids == {"sign_off"}
    second = dag.get_task("promotion_2.canary_5")
    assert second.flow_task.offered == ("targets.load_test",)
    assert dag.get_task("sign_off").task_display_name == "Sign off"


def test_the_plan_has_them(smoke_release, project):
    loaded = load_release(project.config)
    steps = list(planned_steps(loaded.release))
    assert steps.index(("smoke", "cpu-b")) == steps.index(("staging", "cpu-b")) + 1
    assert steps.index(("sign_off", "")) == steps.index(("approve", "")) - 1
    assert ("smoke", "cpu-a") in steps


def test_the_run_without_airflow_and_the_report_have_them(smoke_release, project, in_process):
    project.script()
    in_process.ran.clear()
    assert LocalRun(project.config, approve=lambda _line: True).run() is Verdict.GO
    assert in_process.ran.count(("smoke", "cpu-a")) == 1
    assert in_process.ran.count(("sign_off", "")) == 1
    flow = ReleaseProgress.open(load_release(project.config).deployment, "tiny-01234567-00000000")
    report = collect(flow.store, flow.record.release_id)
    assert {(run.stage, run.subject) for run in report.stages} >= {("smoke", "cpu-a"), ("smoke", "cpu-b")}
    assert flow_order("staging") < flow_order("smoke") < flow_order("served_accuracy")


def test_an_added_gate_that_refuses_moves_no_traffic(smoke_release, project, in_process):
    project.script(sign_off={"error": "terminal"})
    in_process.ran.clear()
    with pytest.raises(Terminal, match="the test asked for a terminal error"):
        LocalRun(project.config, approve=lambda _line: True).run()
    assert "canary" not in {stage for stage, _ in in_process.ran}

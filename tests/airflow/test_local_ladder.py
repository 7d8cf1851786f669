"""`llm-pipeline run` climbs the ladder as the DAG does: real processes, stages that do no work."""

from __future__ import annotations

import logging

import pytest

from llm_pipeline.config.loading import load_release
from llm_pipeline.errors import ExitCode, PipelineError
from llm_pipeline.flow import Flow
from llm_pipeline.local_run import LocalRun
from llm_pipeline.verdict import Verdict

pytestmark = pytest.mark.slow

RELEASE = "tiny-01234567-00000000"
ENDS_THERE = {"build/cpu-a": {"error": "terminal"}}


@pytest.fixture
def run(project, caplog):
    """Runs the release with stages that end as scripted; what it says is returned."""

    def once(**script: dict) -> str:
        caplog.clear()
        project.script(**script)
        with caplog.at_level(logging.INFO, logger="llm_pipeline.run"):
            if ENDS_THERE.items() <= script.items():
                with pytest.raises(PipelineError):
                    LocalRun(project.config, approve=lambda _: True).run()
            else:
                assert LocalRun(project.config, approve=lambda _: True).run() is ExitCode.NO_GO
        return caplog.text

    return once


def test_a_baseline_that_is_refused_ends_the_release_before_anything_is_quantized(project, caplog):
    project.script(baseline_gate={"verdict": "ANOMALOUS"})
    with caplog.at_level(logging.INFO, logger="llm_pipeline.run"):
        assert LocalRun(project.config, approve=lambda _: True).run() is ExitCode.ANOMALOUS
    assert "baseline_gate: ANOMALOUS: the test says ANOMALOUS" in caplog.text
    flow = Flow.open(load_release(project.config).deployment, RELEASE)
    ran = {"resolve", "eval_data", "download", "baseline", "baseline_gate", "report"}
    assert {stage for stage, _ in flow.results()} == ran


def test_a_recipe_that_fails_is_followed_by_the_next_and_one_that_passes_ends_the_climb(project, run):
    def flow() -> Flow:
        return Flow.open(load_release(project.config).deployment, RELEASE)

    error = {"quantize/small": {"error": "terminal"}}
    said = run(**error, **{"accuracy/large": {"verdict": "INCONCLUSIVE"}})
    assert "quantize small failed, the next recipe is tried: ConfigError: the test asked for a terminal error" in said
    assert "choose cpu-a: NO_GO: No recipe passed its accuracy gate: small failed, large INCONCLUSIVE." in said
    assert flow().result("choose", "cpu-a").judgement.verdict is Verdict.NO_GO

    said = run(**ENDS_THERE)
    assert "large is passed over: a cheaper recipe passed (small)" in said
    assert flow().chosen_recipe("cpu-a") == "small"

"""`llm-pipeline run` climbs the ladder as the DAG does: real processes, stages that do no work."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from llm_pipeline.cli import main
from llm_pipeline.config.loading import load_release
from llm_pipeline.errors import ExitCode, PipelineError
from llm_pipeline.flow import Flow
from llm_pipeline.local_run import LocalRun
from llm_pipeline.stages.contract import ArtifactRef
from llm_pipeline.store import open_store
from llm_pipeline.store.pointers import Pointer, Pointers, write_pointers
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
                assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.NO_GO
        return caplog.text

    return once


def test_a_baseline_that_is_refused_ends_the_release_before_anything_is_quantized(project, caplog):
    project.script(baseline_gate={"verdict": "ANOMALOUS"})
    with caplog.at_level(logging.INFO, logger="llm_pipeline.run"):
        assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.ANOMALOUS
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


def test_the_last_words_are_the_verdict_who_serves_how_to_ask_and_the_report(project, capsys):
    store = open_store(load_release(project.config).deployment.store)
    repository = ArtifactRef(kind="model_repository", digest="a" * 64)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    before = Pointer(release_id="before", repository=repository, slot="blue", recipe="fp8", promoted_at=since)
    write_pointers(store, "demo/tiny", "cpu-a", Pointers(production=before), None)

    assert main(["run", str(project.config), "--approve"]) == ExitCode.GO
    done = capsys.readouterr()
    first, *facts = done.out.splitlines()
    assert first == f"{RELEASE}: GO"
    assert "cpu-a serves  before, as before (demo/tiny, fp8, in blue)" in facts[0]
    asked = """/v2/models/llm/generate -d '{"text_input": "Hello", "max_tokens": 32}'"""
    assert facts[1].endswith(f"curl -sS -i http://127.0.0.1:18621{asked}")
    assert "cpu-b serves  nothing" in facts[2]
    assert "settle cpu-b" in done.err
    assert "rollback" not in done.err, "nothing was rolled back"

    project.script(**{"canary/cpu-a:5": {"verdict": "NO_GO"}})
    assert main(["run", str(project.config), "--approve"]) == ExitCode.NO_GO
    done = capsys.readouterr()
    assert done.out.startswith(f"{RELEASE}: NO_GO\n")
    assert "rollback cpu-a" in done.err

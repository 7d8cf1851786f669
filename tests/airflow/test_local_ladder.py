"""`llm-pipeline run` climbs the ladder as the DAG does: stages that do no work, in this process."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest
from place_here import serve

from llm_pipeline.base.errors import ExitCode, PipelineError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.cli import main
from llm_pipeline.local_run import LocalRun
from llm_pipeline.release.loading import load_release
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import Pointer

pytestmark = pytest.mark.usefixtures("in_process")

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
                assert LocalRun(project.config, approve=lambda _: True).run() is Verdict.INCONCLUSIVE
        return caplog.text

    return once


def test_a_baseline_that_is_refused_ends_the_release_before_anything_is_quantized(project, capsys):
    project.script(baseline_gate={"verdict": "ANOMALOUS"})
    put_into_production(project)
    assert main(["run", str(project.config), "--approve"]) == ExitCode.ANOMALOUS
    done = capsys.readouterr()
    assert done.err.count("ANOMALOUS: the test says ANOMALOUS") == 1
    flow = ReleaseProgress.open(load_release(project.config).deployment, RELEASE)
    ran = {"resolve", "eval_data", "download", "baseline", "baseline_gate", "report"}
    assert {stage for stage, _ in flow.results()} == ran

    first, *facts = done.out.splitlines()  # the last words
    assert first == f"{RELEASE}: ANOMALOUS (docs/runbooks.md#anomalous)"
    assert "cpu-a serves  before, as before (demo/tiny, fp8, in blue)" in facts[0]
    asked = """/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "Hello", "max_tokens": 32}'"""
    assert facts[1].endswith(f"curl -sS -i --noproxy '*' http://127.0.0.1:18621{asked}")
    assert "cpu-b serves  nothing" in facts[2]


def put_into_production(project) -> None:
    store = open_store(load_release(project.config).deployment.store)
    repository = ArtifactRef(kind="model_repository", digest="a" * 64)
    since = datetime(2026, 1, 1, tzinfo=UTC)
    before = Pointer(release_id="before", repository=repository, slot="blue", recipe="fp8", promoted_at=since)
    serve(store, "demo/tiny", "cpu-a", before)


def test_a_recipe_that_fails_is_followed_by_the_next_and_one_that_passes_ends_the_climb(project, run):
    def flow() -> ReleaseProgress:
        return ReleaseProgress.open(load_release(project.config).deployment, RELEASE)

    error = {"quantize/small": {"error": "terminal"}}
    said = run(**error, **{"accuracy/large": {"verdict": "INCONCLUSIVE"}})
    assert "quantize small failed, the next one is tried: ConfigError: the test asked for a terminal error" in said
    assert "INCONCLUSIVE: No recipe passed its accuracy gate: small failed, large INCONCLUSIVE" in said
    assert flow().result("choose", "cpu-a").judgement.verdict is Verdict.INCONCLUSIVE

    said = run(**ENDS_THERE)
    assert "large is skipped: a cheaper recipe passed (small)" in said
    assert flow().chosen_recipe("cpu-a") == "small"


def test_after_a_success_nothing_is_called_a_rollback_and_after_a_failure_it_says_what_it_found(project, capsys):
    small = {"recipes: [small, large]": "recipes: [small]", "targets: [cpu-a, cpu-b]": "targets: [cpu-a]"}
    text = project.config.read_text()
    for before, after in small.items():
        text = text.replace(before, after)
    project.config.write_text(text)
    assert main(["run", str(project.config), "--approve"]) == ExitCode.GO
    done = capsys.readouterr()
    assert done.out.startswith(f"{RELEASE}: GO\n")
    assert "settle cpu-a" in done.err
    assert "rollback" not in done.err

    project.script(**{"canary/cpu-a:5": {"verdict": "NO_GO"}})
    assert main(["run", str(project.config), "--approve"]) == ExitCode.NO_GO
    done = capsys.readouterr()
    assert done.out.startswith(f"{RELEASE}: NO_GO (docs/runbooks.md#no_go)\n")
    assert "rollback cpu-a" in done.err

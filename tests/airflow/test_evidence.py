from __future__ import annotations

from llm_pipeline_airflow.evidence import log_table, markdown_table
from llm_pipeline_airflow.runs import release_of_run, remember_run

from llm_pipeline.stages.contract import StageResult
from llm_pipeline.store import open_store
from llm_pipeline.verdict import Evidence, Judgement, Verdict, judge


def test_the_log_table_is_one_record_of_aligned_columns():
    slow = Evidence(name="p99", verdict=Verdict.NO_GO, measured=120.0, lower=110.0, limit=100.0, unit="ms", samples=9)
    unknown = Evidence(name="errors", verdict=Verdict.INCONCLUSIVE)
    table = log_table(judge("slower than allowed", [slow, unknown]))
    assert table.splitlines() == [
        "",
        "NO_GO: slower than allowed",
        "fact    verdict       measured  bounds    limit   n",
        "------  ------------  --------  --------  ------  -",
        "p99     NO_GO         120 ms    [110, -]  100 ms  9",
        "errors  INCONCLUSIVE  no data                     0",
    ]


def test_the_approval_table_shows_gates_only_and_cannot_be_broken_by_their_text():
    gate = result("load_test", Judgement(verdict=Verdict.NO_GO, summary="a|b\nc"), reused=True)
    assert markdown_table([result("build", None), gate]).splitlines()[2:] == [
        "| load test (reused) | cpu | **NO_GO** | a\\|b\\\\nc |"
    ]


def test_the_one_who_approves_sees_what_the_load_test_measured():
    gate = result("load_test", judge("held", [Evidence(name="good", verdict=Verdict.GO, measured=1.0, samples=9)]))
    metrics = {"confirmed_rate_per_second": 40.5, "target_rate_per_second": 20.0, "good_fraction": 0.987}
    line = markdown_table([gate.model_copy(update={"metrics": {**metrics, "end_to_end_p95_milliseconds": None}})])
    assert line.endswith("| held Measured: 40.5 requests/s confirmed, 20 expected, 98.7% good. |")


def test_a_run_is_remembered_whatever_its_id_is_made_of(tmp_path):
    store = open_store(f"file://{tmp_path}")
    for run_id in ("manual__2026-01-01T00:00:00+00:00", "../../escape me/@", "."):
        assert release_of_run(store, "release__a", run_id) is None
        remember_run(store, "release__a", run_id, "a-1")
        remember_run(store, "release__a", run_id, "a-2")
        assert release_of_run(store, "release__a", run_id) == "a-2"
    assert len(store.list_documents("runs")) == 3


def result(stage: str, judgement: Judgement | None, *, reused: bool = False) -> StageResult:
    return StageResult.model_validate(
        {
            "release_id": "r",
            "stage": stage,
            "subject": "cpu",
            "key": "k",
            "reused": reused,
            "judgement": judgement,
            "timings": {"started_at": "2026-01-01T00:00:00Z", "total_seconds": 1.0},
        }
    )

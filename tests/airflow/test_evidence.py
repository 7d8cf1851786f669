from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from llm_pipeline_airflow.started_run import release_of_run, remember_run
from markdown_it import MarkdownIt
from poisoned_text import LONG_TEXT, poisoned_strings

from llm_pipeline.base.verdict import Evidence, Judgement, Verdict, judge
from llm_pipeline.questions import production_question, question_of
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.evidence_text import WIDTH, facts_table, log_table, markdown_table
from llm_pipeline.store import open_store


def test_the_log_has_the_verdict_once_and_its_facts_once_in_percent_and_points():
    loss = {"measured": 0.2153, "lower": 0.1896, "upper": 0.2514, "confidence": 0.95, "limit": 0.015, "samples": 1440}
    loss |= {"unit": "fraction lost", "detail": "342 lost, 32 gained."}
    lost = Evidence(name="accuracy loss", verdict=Verdict.NO_GO, **loss)
    share = {"measured": 1.0, "lower": 0.9825, "limit": 0.95, "unit": "fraction", "confidence": 0.98}
    good = Evidence(name="good", verdict=Verdict.GO, samples=9, **share)
    unknown = Evidence(name="errors", verdict=Verdict.INCONCLUSIVE)
    assert log_table(
        judge("Worse than the margin. accuracy loss: +21.53 points", [lost, good, unknown])
    ).splitlines() == [
        "NO_GO: Worse than the margin (docs/runbooks.md#no_go)",
        "fact           verdict       measured       bounds                           limit         n",
        "-------------  ------------  -------------  -------------------------------  ------------  -----",
        "accuracy loss  NO_GO         +21.53 points  +18.96 to +25.14 points at 95 %  +1.50 points  1,440",
        "good           GO            100.00 %       from 98.25 % at 98 %             95.00 %       9",
        "errors         INCONCLUSIVE  no data                                                       0",
        "accuracy loss: 342 lost, 32 gained.",
    ]
    long = lost.model_copy(
        update={"name": "loss since production, " + "a_task_of_many_words " * 9, "detail": "word " * 99}
    )
    told = log_table(judge("word " * 99, [long, good]))
    assert max(map(len, told.splitlines())) <= WIDTH
    assert told.count("a_task_of_many_words") == 18


def test_the_approval_table_shows_gates_only_and_cannot_be_broken_by_their_text():
    gate = result("load_test", Judgement(verdict=Verdict.NO_GO, summary="a|b\nc"), reused=True)
    assert markdown_table([result("build", None), gate]).splitlines()[2:] == [
        "| load test (reused) | cpu | **NO_GO** | a\\|b\\\\nc |"
    ]


POISON = [text for text in poisoned_strings() if len(text) < LONG_TEXT // 2]
HARMLESS = {"inline", "text", "code_inline", "paragraph", "strong", "table", "thead", "tbody", "tr", "th", "td"}


def rendered(body: str) -> list[str]:
    """The kinds of what a reader of the form sees, for anything else than text in tables and paragraphs."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body)
    leaves = [leaf for token in tokens for leaf in (token, *(token.children or ()))]
    kinds = [token.type.removesuffix("_open") for token in leaves if not token.type.endswith("_close")]
    assert not set(kinds) - HARMLESS, body
    return kinds


@pytest.mark.parametrize("start", range(0, len(POISON), 40))
def test_no_text_of_a_repository_or_a_server_makes_more_of_an_approval_than_text(start: int):
    for text in POISON[start : start + 40]:
        fact = Evidence(name=text, verdict=Verdict.GO, measured=1.0, unit="u", samples=9)
        judgement = Judgement(verdict=Verdict.GO, summary=text, evidence=(fact,))
        gate = result("load_test", judgement)
        assert rendered(markdown_table([gate])).count("td") == 4
        assert rendered(facts_table(judgement)).count("td") == 6
        assert sum(re.fullmatch(r"-+(  -+){5}", line) is not None for line in log_table(judgement).splitlines()) == 1
        model = SimpleNamespace(id="demo/tiny", commit="0" * 40)
        flow = SimpleNamespace(
            record=SimpleNamespace(release_id="r1", model=model),
            chosen_recipe=lambda _target: "fp8",
            chosen_variant=lambda _target: "",
            results=lambda gate=gate: {("load_test", "cpu"): gate},
            targets=("cpu", "gpu"),
            result=lambda _stage, text=text: SimpleNamespace(metrics={"license_change": f"apache-2.0 -> {text}"}),
        )
        assert rendered(question_of("review_license", flow, []).body).count("paragraph") == 3
        assert rendered(production_question(flow, ["cpu"]).body).count("tr") == 2


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

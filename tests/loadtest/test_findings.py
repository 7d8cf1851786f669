"""A load test in figures, and as tables: what the one who decides must find there."""

from pathlib import Path

import numpy as np
import pytest
from load_sample import CONFIRMED_RATE, POLICY, sample_load_test
from load_windows import answered, records

from llm_pipeline.loadtest.findings import WIDTH, findings, format_load_test
from llm_pipeline.loadtest.measure import MeasuredWindow
from llm_pipeline.loadtest.outcome import LoadTestOutcome, ServerUse, deciding_windows, quantile_of
from llm_pipeline.loadtest.records import Fault
from llm_pipeline.loadtest.session import longest_wait, summarize_window
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> LoadTestOutcome:
    return sample_load_test(tmp_path_factory.mktemp("load"), broken=2)


def titles(outcome: LoadTestOutcome) -> list[str]:
    return [table.title.split(":")[0].split(";")[0].split(",")[0] for table in findings(outcome, POLICY)]


def test_every_window_has_its_line_and_every_rate_its_verdict(outcome):
    rows = {row[0]: row for row in findings(outcome, POLICY)[0].rows}
    assert list(rows) == [window.name for window in outcome.windows]
    assert {row[-1] for name, row in rows.items() if name.startswith("search")} == {"GO", "NO_GO"}
    assert rows["floor"][1] == "1 user"
    assert rows["target"][1] == "20/s"


def test_a_void_window_says_so_and_decides_nothing(outcome):
    windows = [
        w.model_copy(update={"void": "the client was late."} if w.name == "confirmation-1-2" else {})
        for w in outcome.windows
    ]
    void = outcome.model_copy(update={"windows": tuple(windows)})
    table = findings(void, POLICY)[0]
    assert "confirmation-1-2 is void: the client was late." in table.notes
    assert [window.name for window in deciding_windows(void)] == ["confirmation-1-1", "confirmation-1-3"]


def test_only_the_last_rate_that_was_tried_decides_and_without_a_confirmation_the_target(outcome):
    last = outcome.windows[-1].model_copy(update={"name": "confirmation-2-1"})
    lowered = outcome.model_copy(update={"windows": (*outcome.windows, last)})
    assert [window.name for window in deciding_windows(lowered)] == ["confirmation-2-1"]
    early = outcome.model_copy(update={"windows": outcome.windows[:3]})
    assert [window.name for window in deciding_windows(early)] == ["target"]


def test_a_quantile_of_several_windows_is_the_middle_ones_between_the_lowest_and_the_highest(outcome):
    values = sorted(window.first_token.p50 for window in deciding_windows(outcome))
    assert quantile_of([window.first_token for window in deciding_windows(outcome)], 0.5) == values[1]
    assert f"{values[1]:.3g} [{values[0]:.3g}..{values[2]:.3g}]" in format_load_test(outcome, POLICY)


def test_limits_rates_and_faults_are_all_told(outcome):
    text = format_load_test(outcome, POLICY).replace("\n  ", " ")
    for told in (
        "250 ms to the first token, 25 ms a token after it, 500 ms of silence, 1500 ms to the end",
        "the search met the service level up to 59.1/s; no rate is confirmed",
        "0.42 USD",
        "stream cut         2  confirmation-1-3  connection reset by peer",
    ):
        assert told in text
    confirmed = outcome.model_copy(update={"confirmed_rate_per_second": CONFIRMED_RATE})
    assert "50/s is confirmed" in format_load_test(confirmed, POLICY)


def test_nothing_is_shown_that_has_no_data(outcome):
    bare = {"faults": {}, "server": ServerUse(), "time_per_output_token": None}
    windows = tuple(window.model_copy(update=bare) for window in outcome.windows[:3])
    little = {"windows": windows, "rates": (), "token_cost": None}
    short = outcome.model_copy(update=little)
    assert titles(outcome) == ["Windows", "Confirmation", "Failed requests by kind", "The server"]
    assert titles(short) == ["Windows", "The workload's rate"]
    assert findings(short, POLICY)[0].head[-4:] == ("TTFT p50/p99", "e2e p99", "stall max", "tokens/s")


def test_what_a_server_said_stays_on_one_line(outcome, tmp_path: Path):
    said = outcome.windows[-1].model_copy(update={"fault_detail": "line one\nline two " + 200 * "x"})
    hostile = outcome.model_copy(update={"windows": (*outcome.windows[:-1], said)})
    text = format_load_test(hostile, POLICY)
    assert text.startswith("\n")
    assert "line one line two xxx" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_request_is_good_within_every_limit_and_only_then_and_who_left_as_planned_is_neither():
    slow = {"first_token_seconds": 0.251, "last_token_seconds": 0.4}
    late, failed, left = {"total_seconds": 1.501}, {"fault": Fault.SHED, "total_seconds": 9.0}, {"fault": Fault.LEFT}
    rows = [answered(k, **how) for k, how in enumerate(({}, slow, late, failed, left))]
    traffic, measured = Traffic([LoadRequest("p", 8)], 10.0, concurrency=1), MeasuredWindow(records(rows), 10.0)
    result = summarize_window("floor", "floor", traffic, measured, POLICY)
    assert (result.requests, result.failed, result.good_fraction, result.faults) == (4, 1, 0.25, {"shed": 1})
    assert result.answered_per_second == 0.3
    assert result.end_to_end.maximum == 1501, "the percentiles are of answers"


def test_the_longest_wait_is_the_longest_time_in_which_requests_in_a_row_were_slow():
    moments = np.arange(40) / 2
    assert longest_wait(moments, np.isin(np.arange(40), [4, 5, 6, 7, 10, 20, 21]) + 0.0) == 2.0, "four requests"
    assert longest_wait(moments[:1], np.ones(1)) == 0.0

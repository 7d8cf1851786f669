"""The load test in a report: what its plots and tables say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from load_sample import CONFIRMED_RATE, POLICY, sample_load_test

from llm_pipeline.loadtest.outcome import write_outcome
from llm_pipeline.reporting.collect import read_load
from llm_pipeline.reporting.figure import Plot
from llm_pipeline.reporting.highlights import highlights
from llm_pipeline.reporting.load_plots import draw_load, plot_latency_by_rate
from llm_pipeline.reporting.model import LoadStudy


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load")
    sample_load_test(path)
    return path


@pytest.fixture(scope="module")
def study(directory: Path) -> LoadStudy:
    return read_load(directory, "cpu", POLICY)


@pytest.fixture(scope="module")
def plots(study: LoadStudy) -> dict[str, Plot]:
    return {plot.name: plot for plot in draw_load(study)}


def texts(plot: Plot) -> set[str]:
    return set(re.findall(r">([^<>]+)</text>", plot.svg))


def with_outcome(study: LoadStudy, **changes: object) -> LoadStudy:
    return study.model_copy(update={"outcome": study.outcome.model_copy(update=changes)})


def test_the_plots_name_their_axes_and_limits_and_hold_them_against_the_quantile_of_the_attainment(
    study: LoadStudy, plots: dict[str, Plot]
) -> None:
    assert {"share of requests answered", "its limit, 250 ms", "its limit, 1,500 ms", "needed: 95 %"} <= texts(
        plots["latency-cpu"]
    )
    assert "2,400 requests at 50 requests/s; none failed" in plots["latency-cpu"].description
    shown = {"first token p95", "end to end p95", "its limit, 250 ms", "workload, 20/s", "confirmed, 50/s"}
    assert shown <= texts(plots["latency-by-rate-cpu"])
    stricter = study.model_copy(update={"policy": POLICY.model_copy(update={"attainment": 0.99})})
    assert "first token p99" in texts(plot_latency_by_rate(stricter))


def test_the_series_holds_every_request_once_and_what_failed_keeps_a_curve_below_one(tmp_path: Path) -> None:
    outcome = sample_load_test(tmp_path, broken=24)
    read, requests = read_load(tmp_path, "cpu", POLICY), sum(window.requests for window in outcome.windows[-3:])
    assert {curve.shares[-1] for curve in read.curves} == {1 - 24 / requests}
    series = read.series
    widths = np.diff(series.edges)
    assert sum(series.arrived * widths) == pytest.approx(requests)
    assert sum(series.failed * widths) == pytest.approx(24)
    assert series.starts == pytest.approx((0.0, 16.0, 32.0))
    assert max(series.longest_stall_milliseconds) == pytest.approx(400.0)
    stalled = series.edges[int(np.argmax(series.longest_stall_milliseconds))]
    assert 16.0 < stalled < 32.0, "the second window has the stall"


def test_a_report_whose_records_were_not_kept_still_has_its_tables(tmp_path: Path, study: LoadStudy) -> None:
    write_outcome(tmp_path, study.outcome)
    bare = read_load(tmp_path, "cpu", POLICY)
    assert (bare.curves, bare.series) == ((), None)
    assert bare.outcome == study.outcome


def test_the_figures_on_top_are_the_confirmed_rate_and_the_cost(study: LoadStudy) -> None:
    rate, cost = highlights((), (), (study,), {})
    assert rate.value == f"{CONFIRMED_RATE:g}/s"
    assert "0 of 2,400 failed; first token p95 18" in rate.note
    assert cost.value == "0.42 USD"
    unconfirmed = with_outcome(study, confirmed_rate_per_second=None, token_cost=None)
    (rate,) = highlights((), (), (unconfirmed,), {})
    assert rate.value == "none confirmed"
    whole = [window.model_copy(update={"first_token": None}) for window in study.outcome.windows]
    assert "; end to end p95" in highlights((), (), (with_outcome(study, windows=tuple(whole)),), {})[0].note
    used = [one.server.model_copy(update={"acceptance_length": 2.5}) for one in study.outcome.windows]
    pairs = zip(study.outcome.windows, used, strict=True)
    speculated = tuple(window.model_copy(update={"server": server}) for window, server in pairs)
    _, step, _ = highlights((), (), (with_outcome(study, windows=speculated),), {})
    assert (step.label, step.value) == (f"Tokens a step, {study.target}", "2.50")


def test_the_page_has_the_sentence_that_decided_and_every_table(promoted_page) -> None:
    page = promoted_page
    part = page[page.index("<h2>Load test, cpu</h2>") : page.index("<h2>Canary, cpu</h2>")]
    for told in (
        "<strong>At 50/s the service level is met.</strong>",
        "Windows; latencies in ms from the scheduled arrival",
        "Confirmation: latencies in ms of 2,400 requests in 3 windows",
        "The server, by its own metrics",
    ):
        assert told in part
    assert "Failed requests by kind" not in part

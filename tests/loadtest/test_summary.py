import random

import numpy as np
import pytest
from scipy import stats

from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.loadtest.gate import judge_load_test
from llm_pipeline.loadtest.records import RequestRecord, read_records, write_records
from llm_pipeline.loadtest.summary import quantile_with_bounds, read_summary, summarize, write_summary
from llm_pipeline.loadtest.table import format_load_test

POLICY = LoadTestPolicy(service_level=ServiceLevel(first_token_milliseconds=100, end_to_end_milliseconds=300))


def records(count: int) -> list[RequestRecord]:
    draws = random.Random(1)  # noqa: S311
    return [
        RequestRecord(
            number=number,
            arrives_at=number / 20,
            lag_seconds=0.001,
            first_token_seconds=(first := 0.01 + draws.expovariate(50)),
            total_seconds=first + 0.05,
            asked_tokens=8,
            output_tokens=0 if number % 50 == 49 else 8,
            status=200,
            error="broken" if number % 50 == 49 else "",
        )
        for number in range(count)
    ]


def summary(count: int = 300):
    return summarize(
        records(count), POLICY, offered_per_second=20.0, window_seconds=count / 20, workload_digest="0" * 64
    )


def test_order_statistic_bounds_are_the_tightest_that_the_binomial_allows():
    quantile = quantile_with_bounds([number / 1e3 for number in range(1, 1001)], 0.99)
    low, high = round(quantile.lower), round(quantile.upper)
    assert round(quantile.milliseconds) == 990
    below, beyond = stats.binom.cdf(low - 1, 1000, 0.99), stats.binom.sf(high - 1, 1000, 0.99)
    assert below <= 0.025
    assert beyond <= 0.025
    assert stats.binom.cdf(low, 1000, 0.99) > 0.025
    assert stats.binom.sf(high - 2, 1000, 0.99) > 0.025


def test_a_bound_that_the_sample_is_too_small_for_is_none():
    quantile = quantile_with_bounds([0.001 * number for number in range(1, 101)], 0.99)
    assert quantile.upper is None


def test_the_bounds_cover_the_true_quantile_as_often_as_they_say():
    draws = np.random.default_rng(5)
    truth = 1e3 * -np.log(0.1)
    hits = 0
    for _ in range(400):
        quantile = quantile_with_bounds(list(draws.exponential(size=200)), 0.9)
        hits += quantile.lower <= truth <= quantile.upper
    assert 0.92 <= hits / 400 <= 1.0


def test_failed_requests_are_counted_and_kept_out_of_the_percentiles():
    result = summary()
    assert (result.requests, result.failed) == (300, 6)
    assert sum(result.first_token.histogram.counts) == 294
    assert result.answered_per_second == pytest.approx(294 / 15)


def test_the_time_series_holds_every_request_once():
    result = summary()
    assert sum(second.arrived for second in result.seconds) == 300
    assert [second.second for second in result.seconds] == list(range(15))


def test_histograms_of_two_tests_share_their_edges():
    one, other = summary(100).end_to_end.histogram, summary(300).end_to_end.histogram
    shared = set(one.edges_milliseconds) & set(other.edges_milliseconds)
    assert len(shared) >= min(len(one.edges_milliseconds), len(other.edges_milliseconds)) - 1
    assert len(one.edges_milliseconds) == len(one.counts) + 1


def test_records_and_summary_come_back_as_they_were_written(tmp_path):
    write_records(tmp_path, records(50))
    write_summary(tmp_path, summary())
    assert read_records(tmp_path) == records(50)
    assert read_summary(tmp_path) == summary()


def test_the_table_is_one_text_that_starts_on_a_new_line_and_ends_with_the_verdict():
    text = format_load_test(summary(), judge_load_test(records(300), POLICY), POLICY)
    assert text.startswith("\n")
    assert text.splitlines()[-1].startswith("NO_GO: ")
    assert "p95" in text


def test_without_requests_there_is_no_summary():
    with pytest.raises(ValueError, match="without requests"):
        summarize([], POLICY, offered_per_second=1, window_seconds=1, workload_digest="")

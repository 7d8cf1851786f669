"""The traffic of a workload: requests, lengths and times, the same for the same seed."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.workload import LognormalLengths, RecordedLengths, SharedPrefixes, Workload, longest
from llm_pipeline.loadtest.workload import (
    TrafficSource,
    arrival_times,
    check_workload,
    draw_lengths,
    locate_prompts,
    longest_request,
)
from llm_pipeline.release.loading import load_release

CONFIGS = Path(__file__).parents[2] / "configs"
PREFIXES = SharedPrefixes(share=0.4, prefixes=3, tokens=50)
RECORDED = RecordedLengths(maximum=4000)


def workload(**changes: object) -> Workload:
    settings = {"prompts": "workloads/chat-example.jsonl", "rate_per_second": 20.0, "duration_seconds": 10.0, "seed": 1}
    return Workload.model_validate({**settings, **changes})


def words(text: str) -> int:
    return len(text.split())


def source(directory: Path = CONFIGS, **changes: object) -> TrafficSource:
    return TrafficSource(workload(**changes), directory, count_tokens=words)


@pytest.fixture
def directory(tmp_path):
    rows = (
        {"prompt": f"{number} says the line of number {number}", "output_tokens": number} for number in range(1, 61)
    )
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [{}, {"prompt_tokens": (5, 90), "shared_prefixes": PREFIXES}, {"prompt_tokens": RECORDED}],
    ids=["as_they_are", "drawn", "recorded"],
)
def test_traffic_is_that_of_its_seed_and_no_prompt_occurs_twice(changes):
    first, again, other = (source(**changes).open_loop(20.0, 10.0, seed) for seed in (1, 1, 2))
    assert first.requests == again.requests != other.requests
    assert first.arrivals.tolist() == again.arrivals.tolist() != other.arrivals.tolist()
    prompts = [request.prompt for request in first.requests]
    assert len(set(prompts)) == len(prompts) > 150
    assert prompts[:50] != [request.prompt for request in other.requests][:50]
    if "prompt_tokens" in changes:  # made up: new in each window
        assert set(prompts).isdisjoint(request.prompt for request in other.requests)


def test_the_seed_of_the_workload_the_lengths_and_the_times_make_the_traffic():
    drawn = [
        source(**changes).open_loop(rate, 10.0, 1)
        for changes, rate in (
            ({}, 20.0), ({}, 21.0), ({"output_tokens": (4, 17)}, 20.0), ({"burstiness": 2.0}, 20.0),
            ({"shared_prefixes": PREFIXES}, 20.0), ({"shared_prefixes": PREFIXES, "seed": 2}, 20.0),
        )
    ]  # fmt: skip
    assert len({(traffic.requests, tuple(traffic.arrivals)) for traffic in drawn}) == 6


def test_prompts_as_they_are_come_once_each_and_then_new_ones_of_such_lengths(directory):
    requests = source(directory, prompts="p.jsonl").open_loop(20.0, 10.0, 1).requests
    prompts = [request.prompt for request in requests]
    own = {json.loads(line)["prompt"] for line in (directory / "p.jsonl").read_text().splitlines()}
    assert set(prompts[:60]) == own
    assert len(set(prompts)) == len(prompts)
    assert {words(prompt) for prompt in prompts[60:]} <= {6, 7, 8}


def test_answers_have_the_recorded_lengths_of_their_prompts(directory):
    window = source(directory, prompts="p.jsonl", output_tokens=RecordedLengths(maximum=30)).open_loop(5.0, 10.0, 1)
    assert all(r.maximum_tokens == min(30, int(r.prompt.split()[0])) for r in window.requests)


def test_prefixes_are_shared_at_exactly_their_share_and_in_all_windows():
    drawn = source(prompt_tokens=(20, 60), shared_prefixes=PREFIXES)
    windows = [drawn.open_loop(20.0, 10.0, seed).requests for seed in (1, 2)]
    begins = [Counter(request.prompt.split("\n\n")[0] for request in window if _is_long(request)) for window in windows]
    shared = [{text: number for text, number in counted.items() if number > 1} for counted in begins]
    assert set(shared[0]) == set(shared[1])
    assert len(shared[0]) == 3
    for window, counted in zip(windows, shared, strict=True):
        assert sum(counted.values()) == round(0.4 * len(window))
    assert [words(text) for text in shared[0]] == pytest.approx([50] * 3, abs=2)


def _is_long(request):
    return words(request.prompt) > 45


def test_those_who_leave_have_exactly_their_share():
    requests = source(cancelled_share=0.1, output_tokens=(4, 9)).open_loop(20.0, 10.0, 1).requests
    leaving = [request for request in requests if request.cancel_after_tokens]
    assert len(leaving) == round(0.1 * len(requests))
    assert all(request.cancel_after_tokens == request.maximum_tokens // 2 for request in leaving)


def test_users_of_a_closed_loop_send_the_same_kind_of_requests():
    closed = source(prompt_tokens=(20, 60), output_tokens=(4, 9)).closed_loop(4, 5.0, 1, maximum_requests=300)
    assert (closed.concurrency, closed.duration_seconds, closed.arrivals) == (4, 5.0, None)
    assert len({request.prompt for request in closed.requests}) == 300
    assert {request.maximum_tokens for request in closed.requests} == set(range(4, 10))


def test_prompts_are_found_in_configs_and_in_what_resolving_publishes(tmp_path):
    with pytest.raises(ConfigError, match=r"no workloads/chat-example\.jsonl"):
        locate_prompts(workload(), tmp_path)
    (tmp_path / "chat-example.jsonl").write_bytes(locate_prompts(workload(), CONFIGS).read_bytes())
    assert source(tmp_path).open_loop(2.0, 5.0, 1).requests == source().open_loop(2.0, 5.0, 1).requests


def test_lengths_are_drawn_cut_or_each_alike_often():
    recorded, random = np.array([3, 900, 1000]), np.random.default_rng(1)
    assert draw_lengths(RecordedLengths(maximum=900), recorded, random).tolist() == [3, 900, 900]
    values, counts = np.unique(draw_lengths((4, 16), np.zeros(130_000), random), return_counts=True)
    assert values.tolist() == list(range(4, 17))
    assert counts == pytest.approx(np.full(13, 10_000), rel=0.05)
    chat = LognormalLengths(median=200, p95=1000, minimum=20, maximum=4000)
    drawn = draw_lengths(chat, np.zeros(100_000), random)
    assert np.quantile(drawn, [0.5, 0.95]) == pytest.approx([200, 1000], rel=0.03)
    assert (drawn.min(), drawn.max()) == (20, 4000)
    assert [longest((4, 16)), longest(chat), longest(RecordedLengths(maximum=900))] == [16, 4000, 900]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tokens": RECORDED}, r"chat-example\.jsonl:1: .*'output_tokens'"),
        ({"prompts": "workloads/none.jsonl"}, r"no workloads/none\.jsonl"),
    ],
)
def test_contradictions_and_bad_files_are_refused_before_anything_is_sent(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_workload(workload(**changes), CONFIGS)


def test_windows_follow_one_another_each_by_its_seed_and_one_may_be_empty():
    run, alone = source().windows(5.0, 10.0, [1, 2]), source().open_loop(5.0, 10.0, 2)
    assert run.duration_seconds == 20.0
    assert run.between(10.0, 20.0).requests == alone.requests
    assert run.between(10.0, 20.0).arrivals == pytest.approx(alone.arrivals)
    assert len(source(prompt_tokens=(5, 9), shared_prefixes=PREFIXES).windows(1.0, 1e-9, [1, 2]).requests) == 0


@pytest.mark.parametrize("release", sorted(path.stem for path in (CONFIGS / "releases").glob("*.yaml")))
def test_requests_of_the_example_releases_fit_their_targets(release):
    loaded = load_release(CONFIGS / f"releases/{release}.yaml")
    check_workload(loaded.release.workload, CONFIGS)
    most = longest_request(loaded.release.workload) or 0
    assert all(most <= target.limits.maximum_tokens_per_request for target in loaded.release.targets)


@pytest.mark.parametrize("burstiness", [1.0, 2.0, 0.5, 0.01])
def test_times_rise_within_the_window_at_the_asked_rate_and_vary_as_was_asked(burstiness):
    times = arrival_times(50.0, 20.0, burstiness, 1)
    assert 0.0 < times[0] <= times[-1] < 20.0
    assert np.all(np.diff(times) >= 0.0)
    counts = [len(arrival_times(30.0, 10.0, burstiness, seed)) for seed in range(200)]
    assert np.mean(counts) == pytest.approx(300, abs=4.0 * np.std(counts) / 200**0.5 + 1.0)
    gaps = np.diff(arrival_times(100.0, 1000.0, burstiness, 3))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(burstiness, rel=0.02)


def test_a_window_without_a_request_and_a_rate_or_a_duration_of_nothing_are_refused():
    with pytest.raises(ConfigError, match="no request"):
        source().open_loop(1.0, 1e-9, 1)
    for rate, seconds in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="positive"):
            arrival_times(rate, seconds, 1.0, 0)

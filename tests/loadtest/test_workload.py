import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.workload import (
    GammaArrivals,
    LognormalLengths,
    RecordedLengths,
    SharedPrefixes,
    Trace,
    UniformLengths,
    Workload,
)
from llm_pipeline.loadtest.workload import TrafficSource, check_workload, longest_request
from llm_pipeline.loadtest.workload_files import locate_files, workload_files
from llm_pipeline.release.loading import load_release

CONFIGS = Path(__file__).parents[2] / "configs"
PREFIXES = SharedPrefixes(share=0.4, prefixes=3, tokens=50)
RECORDED = RecordedLengths(maximum=4000)
MOONCAKE = Trace(file="workloads/mooncake-example.jsonl", format="mooncake")
BURSTGPT = Trace(file="workloads/burstgpt-example.csv", format="burstgpt")
REPLAYED = {"prompt_tokens": RECORDED, "output_tokens": RECORDED}


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
    [
        {},
        {"prompt_tokens": UniformLengths(minimum=5, maximum=90), "shared_prefixes": PREFIXES},
        {"prompt_tokens": RECORDED},
        {"trace": MOONCAKE, **REPLAYED},
        {"trace": BURSTGPT.model_copy(update={"shape": "lengths"}), **REPLAYED},
    ],
    ids=["as_they_are", "drawn", "recorded", "replay", "lengths"],
)
def test_traffic_is_that_of_its_seed_and_no_prompt_occurs_twice(changes):
    first, again, other = (source(**changes).open_loop(20.0, 10.0, seed) for seed in (1, 1, 2))
    assert first.digest == again.digest != other.digest
    assert first.requests == again.requests
    prompts = [request.prompt for request in first.requests]
    assert len(set(prompts)) == len(prompts) > 150
    assert prompts[:50] != [request.prompt for request in other.requests][:50]


def test_made_up_prompts_are_new_in_each_window():
    drawn = source(prompt_tokens=UniformLengths(minimum=20, maximum=60))
    windows = [{request.prompt for request in drawn.open_loop(20.0, 10.0, seed).requests} for seed in (1, 2)]
    assert not windows[0] & windows[1]


def test_the_seed_of_the_workload_the_lengths_and_the_times_name_the_traffic():
    digests = {
        source(**changes).open_loop(rate, 10.0, 1).digest
        for changes, rate in (
            ({}, 20.0), ({}, 21.0), ({"output_tokens": (4, 17)}, 20.0), ({"streaming_share": 0.5}, 20.0),
            ({"arrivals": GammaArrivals()}, 20.0), ({"priorities": {1: 0.5, 2: 0.5}}, 20.0),
            ({"shared_prefixes": PREFIXES}, 20.0), ({"shared_prefixes": PREFIXES, "seed": 2}, 20.0),
        )
    }  # fmt: skip
    assert len(digests) == 8


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


def test_lengths_are_those_of_the_distributions():
    lengths = LognormalLengths(median=40, p95=160, minimum=5, maximum=400)
    requests = source(prompt_tokens=lengths, output_tokens=lengths).open_loop(200.0, 10.0, 1).requests
    for drawn in ([words(r.prompt) for r in requests], [r.maximum_tokens for r in requests]):
        assert np.quantile(drawn, [0.5, 0.95]) == pytest.approx([40, 160], rel=0.12)
        assert max(drawn) <= 408


def test_prefixes_are_shared_at_exactly_their_share_and_in_all_windows():
    drawn = source(prompt_tokens=UniformLengths(minimum=20, maximum=60), shared_prefixes=PREFIXES)
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


def test_streams_priorities_and_cancellations_have_exactly_their_shares():
    settings = {
        "streaming_share": 0.8,
        "cancelled_share": 0.1,
        "priorities": {1: 0.25, 3: 0.75},
        "output_tokens": (4, 9),
    }
    requests = source(**settings).open_loop(20.0, 10.0, 1).requests
    count = len(requests)
    assert sum(request.stream for request in requests) == round(0.8 * count)
    assert Counter(request.priority for request in requests) == {1: round(0.25 * count), 3: count - round(0.25 * count)}
    leaving = [request for request in requests if request.cancel_after_tokens]
    assert len(leaving) == round(0.1 * count)
    assert all(r.stream and r.cancel_after_tokens == r.maximum_tokens // 2 for r in leaving)


def test_users_of_a_closed_loop_send_the_same_kind_of_requests():
    settings = {"prompt_tokens": UniformLengths(minimum=20, maximum=60), "output_tokens": (4, 9)}
    closed = source(**settings).closed_loop(4, 5.0, 1, maximum_requests=300)
    assert (closed.concurrency, closed.duration_seconds, closed.arrivals, len(closed.requests)) == (4, 5.0, None, 300)
    assert len({request.prompt for request in closed.requests}) == 300
    assert {request.maximum_tokens for request in closed.requests} == set(range(4, 10))


def test_a_replay_has_the_times_lengths_and_shared_blocks_of_its_trace():
    replayed = source(trace=MOONCAKE, **REPLAYED)
    first, other = (replayed.open_loop(4.0, 10.0, seed) for seed in (1, 2))
    rows = [json.loads(line) for line in (CONFIGS / MOONCAKE.file).open()]
    assert [r.maximum_tokens for r in first.requests] == [row["output_length"] for row in rows]
    assert [words(r.prompt) for r in first.requests] == pytest.approx(
        [min(4000, row["input_length"]) for row in rows], abs=12
    )
    assert first.arrivals.tolist() == other.arrivals.tolist()
    assert first.arrivals[4] / first.arrivals[-1] == pytest.approx(rows[4]["timestamp"] / rows[-1]["timestamp"])
    begins = {r.prompt[:2000] for r in first.requests if words(r.prompt) > 513}
    assert len(begins) == 1, "all of them have block 0"
    assert begins != {other.requests[0].prompt[:2000]}, "which is another text in another window"


def test_a_trace_that_starts_over_shares_no_blocks_with_its_first_lap():
    requests = source(trace=MOONCAKE, **REPLAYED).open_loop(8.0, 10.0, 1).requests
    assert requests[0].maximum_tokens == requests[40].maximum_tokens
    assert requests[0].prompt[:100] != requests[40].prompt[:100]


def test_the_lengths_of_a_trace_are_drawn_in_pairs():
    trace = BURSTGPT.model_copy(update={"shape": "lengths"})
    requests = source(trace=trace, arrivals=GammaArrivals(), **REPLAYED).open_loop(20.0, 10.0, 1).requests
    rows = [line.split(",") for line in (CONFIGS / BURSTGPT.file).read_text().splitlines()[1:]]
    pairs = np.array([(int(row[2]), int(row[3])) for row in rows])
    for request in requests:
        with_its_answer = pairs[pairs[:, 1] == request.maximum_tokens, 0]
        assert np.min(np.abs(with_its_answer - words(request.prompt))) <= 12


def test_files_are_found_in_configs_and_in_what_resolving_publishes(tmp_path):
    traced = workload(trace=BURSTGPT, **REPLAYED)
    assert workload_files(traced) == ("workloads/chat-example.jsonl", BURSTGPT.file)
    with pytest.raises(ConfigError, match=r"no workloads/chat-example.jsonl and no 0-chat-example.jsonl"):
        locate_files(traced, tmp_path)
    for number, path in enumerate(locate_files(traced, CONFIGS)):
        (tmp_path / f"{number}-{path.name}").write_bytes(path.read_bytes())
    published = TrafficSource(traced, tmp_path, count_tokens=words).open_loop(2.0, 5.0, 1)
    assert published.digest == TrafficSource(traced, CONFIGS, count_tokens=words).open_loop(2.0, 5.0, 1).digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace": MOONCAKE}, r"trace: it names the lengths.*`recorded`.*maximum"),
        ({"trace": MOONCAKE, **REPLAYED, "arrivals": GammaArrivals()}, "arrivals: the trace's times are replayed"),
        ({"trace": MOONCAKE, **REPLAYED, "shared_prefixes": PREFIXES}, "shared_prefixes: the trace's hash_ids"),
        ({"cancelled_share": 0.5, "streaming_share": 0.4}, "cancelled_share: only streamed requests"),
        ({"rate_per_second": 0.01, "duration_seconds": 10.0}, "less than one request"),
        ({"output_tokens": RECORDED}, r"chat-example\.jsonl:1: .*'output_tokens'"),
        ({"prompts": "workloads/none.jsonl"}, r"no workloads/none\.jsonl"),
        (
            {"trace": Trace(file=BURSTGPT.file, format="mooncake"), **REPLAYED},
            r"burstgpt-example\.csv:1: not a request",
        ),
        (
            {"trace": Trace(file=BURSTGPT.file, format="burstgpt", first_second=1e6), **REPLAYED},
            "from second 1e[+]06 on",
        ),
    ],
)
def test_contradictions_and_bad_files_are_refused_before_anything_is_sent(changes, message):
    with pytest.raises(ConfigError, match=message):
        check_workload(workload(**changes), CONFIGS)


def test_a_window_without_a_request_is_refused():
    with pytest.raises(ConfigError, match="no request"):
        source().open_loop(1.0, 1e-9, 1)


@pytest.mark.parametrize("release", sorted(path.stem for path in (CONFIGS / "releases").glob("*.yaml")))
def test_requests_of_the_example_releases_fit_their_targets(release):
    loaded = load_release(CONFIGS / f"releases/{release}.yaml")
    check_workload(loaded.release.workload, CONFIGS)
    longest = longest_request(loaded.release.workload) or 0
    assert all(longest <= target.limits.maximum_tokens_per_request for target in loaded.release.targets)

from pathlib import Path

import numpy as np
import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.workload import Trace
from llm_pipeline.loadtest.traces import read_trace

EXAMPLES = Path(__file__).parents[2] / "configs/workloads"
MOONCAKE = '{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": %s}\n'
HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture
def written(tmp_path):
    def read(text, *, first_second=0.0):
        kind = "mooncake" if text.startswith("{") or "\n{" in text else "burstgpt"
        path = tmp_path / "trace"
        path.write_text(text)
        return read_trace(path, Trace(file="trace", format=kind, first_second=first_second))

    return read


def test_a_mooncake_trace_has_times_in_milliseconds_and_blocks(written):
    trace = written(MOONCAKE % (500, 1000, 20, "[0, 1]") + MOONCAKE % (3500, 1024, 7, "[0, 2]"))
    assert trace.times.tolist() == [0.0, 3.0]
    assert trace.prompt_tokens.tolist() == [1000, 1024]
    assert trace.output_tokens.tolist() == [20, 7]
    assert trace.blocks == ((0, 1), (0, 2))


def test_a_burstgpt_trace_has_times_in_seconds_and_no_failed_requests(written):
    trace = written(
        HEADER + "5,ChatGPT,472,18,490,Conversation log\n7,GPT-4,9,0,9,API log\n45,GPT-4,87,230,317,API log\n"
    )
    assert trace.times.tolist() == [0.0, 40.0]
    assert trace.prompt_tokens.tolist() == [472, 87]
    assert trace.output_tokens.tolist() == [18, 230]
    assert trace.blocks == ()


def test_a_replay_begins_at_the_first_second_asked_for(written):
    rows = "".join(f"{second},ChatGPT,{second},1,2,API log\n" for second in (1, 4, 9, 16))
    trace = written(HEADER + rows, first_second=3.5)
    assert trace.prompt_tokens.tolist() == [4, 9, 16]
    assert trace.times.tolist() == [0.0, 5.0, 12.0]


def test_a_replay_fills_its_window_up_to_the_next_request(written):
    rows = "".join(f"{second},ChatGPT,10,1,11,API log\n" for second in (0, 1, 1, 5, 10))
    trace = written(HEADER + rows)
    assert trace.replay(3, 10.0).tolist() == pytest.approx([0.0, 2.0, 2.0])  # the fourth came at second 5
    assert trace.replay(2, 10.0).tolist() == pytest.approx([0.0, 2.0])  # the next one that is later came at 5, too


def test_a_replay_that_needs_more_starts_over_after_a_mean_gap(written):
    rows = "".join(f"{second},ChatGPT,10,1,11,API log\n" for second in (0, 2, 6))
    times = written(HEADER + rows).replay(6, 18.0)  # laps of 9 seconds
    assert times.tolist() == pytest.approx([0.0, 2.0, 6.0, 9.0, 11.0, 15.0])


@pytest.mark.parametrize(
    ("file", "kind", "requests"), [("mooncake-example.jsonl", "mooncake", 40), ("burstgpt-example.csv", "burstgpt", 38)]
)
def test_the_examples_are_of_their_formats(file, kind, requests):
    trace = read_trace(EXAMPLES / file, Trace(file=file, format=kind))
    assert len(trace) == requests
    times = trace.replay(500, 50.0)
    assert times[0] == 0.0
    assert times[-1] < 50.0
    assert np.all(np.diff(times) >= 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(HEADER.replace("Response", "R") + "1,a,2,3,4,b\n", r"trace:1: no column Response", id="column"),
        pytest.param(HEADER + "1,a,2,3,4,b\nx,a,2,3,4,b\n", r"trace:3: .*'x'", id="no_number"),
        pytest.param(HEADER + "1,a,2\n", r"trace:2: ", id="short_row"),
        pytest.param(HEADER + "1,a,-2,3,4,b\n", r"trace:2: .*not a positive number", id="negative"),
        pytest.param(HEADER + "5,a,2,3,4,b\n4,a,2,3,4,b\n", r"trace:3: .*earlier than the one before", id="order"),
        pytest.param(HEADER + "5,a,2,3,4,b\n", r"trace: no two requests .*from second 0", id="one_request"),
        pytest.param(HEADER + "5,a,2,3,4,b\n" * 3, "no two requests at different times", id="one_moment"),
        pytest.param('{"timestamp": 1, "output_length": 2}\n', r"trace:1: .*'input_length' is missing", id="field"),
        pytest.param("\n{}}\n", r"trace:2: not a request", id="no_json"),
        pytest.param("\n{[]}\n", r"trace:2: not a request", id="no_object"),
        pytest.param(MOONCAKE % (0, 1000, 5, "[1, 2, 3]"), r"trace:1: .*3 hash_ids .*1000 tokens", id="block_size"),
        pytest.param(MOONCAKE % (0, 1536, 5, "[1, 2]"), r"trace:1: .*2 hash_ids", id="too_few_blocks"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_its_line(written, text, message):
    with pytest.raises(ConfigError, match=message):
        written(text)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read"):
        read_trace(tmp_path / "none.csv", Trace(file="none.csv", format="burstgpt"))


@pytest.mark.parametrize("length", ["1e999", "1" + "0" * 30, "1" + "0" * 400])
def test_a_length_that_no_prompt_has_is_refused_with_its_line(written, length):
    text = MOONCAKE % (0, 3, 4, "[]") + f'{{"timestamp": 9, "input_length": {length}, "output_length": 4}}\n'
    with pytest.raises(ConfigError) as refused:
        written(text)
    assert refused.value.where.endswith("trace:2")

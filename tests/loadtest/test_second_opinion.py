"""The exports are of real runs against Triton: five requests by aiperf 0.13.0, one refused; four by perf_analyzer."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from load_windows import answered
from scripted_server import ScriptedServer

from benchmarks.perf_analyzer_export import read_perf_analyzer
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import LoadTestPolicy, ServiceLevel
from llm_pipeline.config.workload import SharedPrefixes, UniformLengths, Workload
from llm_pipeline.loadtest import second_opinion as aiperf
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.second_opinion import (
    AIPERF_SUMMARY,
    PROGRAM_VARIABLE,
    compare_runs,
    paired_traffic,
    read_aiperf,
    require_tool,
    run_aiperf,
    second_opinion,
)
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic
from llm_pipeline.loadtest.workload import TrafficSource

EXPORTS = Path(__file__).parent / "exports"
CONFIGS = Path(__file__).parents[2] / "configs"
ENDPOINT = Endpoint(url="http://127.0.0.1:9/triton")
POLICY = LoadTestPolicy(service_level=ServiceLevel(first_token_milliseconds=100), second_opinion="aiperf")
WORKLOAD = Workload(
    prompts="workloads/chat-example.jsonl", rate_per_second=40, duration_seconds=0.5, output_tokens=(2, 6), seed=1,
    prompt_tokens=UniformLengths(minimum=5, maximum=9), streaming_share=0.5, cancelled_share=0.2, priorities={1: 1.0},
    shared_prefixes=SharedPrefixes(share=0.5, tokens=10),
)  # fmt: skip
STAND_IN = """#!/bin/sh
# stands in for aiperf: it takes only what aiperf took, and leaves what aiperf left
while [ $# -gt 0 ]; do
  case "$1" in
    profile|--streaming|--fixed-schedule|--no-gpu-telemetry|--no-server-metrics) ;;
    --output-artifact-dir) out="$2"; shift ;;
    --input-file) trace="$2"; shift ;;
    --tokenizer) test -f "$2/tokenizer.json" || exit 2; shift ;;
    --model|--endpoint-type|--url|--custom-endpoint|--custom-dataset-type|--request-timeout-seconds|--workers-max|\
--record-processor-service-count|--ui-type|--extra-inputs) shift ;;
    *) exit 2 ;;
  esac
  shift
done
test -n "$HF_HUB_OFFLINE" && exit 3
env > "$out/environment"
"""
LEAVES = f'test -s "$trace" && cp {EXPORTS}/profile_export* "$out"\n'


def source() -> TrafficSource:
    return TrafficSource(WORKLOAD, CONFIGS, count_tokens=lambda text: len(text.split()))


def program(directory: Path, ending: str) -> Path:
    path = directory / "aiperf"
    path.write_text(STAND_IN + ending)
    path.chmod(0o755)
    return path


def test_an_export_of_aiperf_is_its_requests_and_what_it_says_of_itself():
    run = read_aiperf(EXPORTS)
    assert (run.tool, run.failed, run.lag_p99_seconds) == ("aiperf 0.13.0", 1, pytest.approx(0.00195931))
    np.testing.assert_allclose(run.first_token_seconds, [0.013216768, 0.008768702, 0.009810022, 0.008443719])
    np.testing.assert_allclose(run.total_seconds[:2], [0.051969554, 0.025611145])
    assert run.output_tokens.tolist() == [8, 4, 6, 1]
    assert np.isnan(run.time_per_output_token_seconds).tolist() == [False, False, False, True]


def test_an_export_of_perf_analyzer_is_timed_from_its_raw_stamps(tmp_path):
    export = json.loads((EXPORTS / "perf_analyzer.json").read_text())
    export["experiments"][0]["requests"][3]["response_timestamps"] = []
    (path := tmp_path / "export.json").write_text(json.dumps(export))
    run = read_perf_analyzer(path)
    assert (run.tool, run.failed, run.output_tokens.tolist()) == ("perf_analyzer 2.51.0", 1, [8, 8, 8])
    first = export["experiments"][0]["requests"][0]
    expected = [(stamp - first["timestamp"]) / 1e9 for stamp in first["response_timestamps"]]
    assert run.first_token_seconds[0] == pytest.approx(expected[0], abs=1e-9)
    assert run.total_seconds[0] == pytest.approx(expected[-1], abs=1e-9)
    assert run.time_per_output_token_seconds[0] == pytest.approx((expected[-1] - expected[0]) / 7)


BROKEN = {
    "a run that was cut off": lambda summary: {**summary, "is_complete": False},
    "a run that was cancelled": lambda summary: {**summary, "was_cancelled": True},
    "a run of nobody": lambda summary: {name: value for name, value in summary.items() if name != "aiperf_version"},
    "no run": lambda _: [],
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_export_is_refused_of(tmp_path, name):
    shutil.copytree(EXPORTS, tmp_path, dirs_exist_ok=True)
    path = tmp_path / AIPERF_SUMMARY
    path.write_text(json.dumps(BROKEN[name](json.loads(path.read_text()))))
    with pytest.raises(IntegrityError):
        read_aiperf(tmp_path)
    with pytest.raises(IntegrityError, match="perf_analyzer"):
        read_perf_analyzer(path)


def test_both_are_counted_from_the_send_and_the_differences_are_told():
    late = Records.of(answered(number, lag_seconds=0.004, first_token_seconds=0.02) for number in range(10))
    opinion = compare_runs(read_aiperf(EXPORTS), late, counted_by="words")
    assert opinion.figures["first token from the send p50, ms"] == (pytest.approx(9.289362), pytest.approx(16.0))
    assert opinion.figures["last token from the send p50, ms"][1] == pytest.approx(86.0)
    assert opinion.figures["time per output token p50, ms"][1] == pytest.approx(10.0)
    assert opinion.figures["output tokens per request"] == (4.75, 8.0)
    assert opinion.figures["failed requests"] == (1.0, 0.0)
    clock, tokens, checks = opinion.differences
    assert "99 % were at most 2 ms late" in clock
    assert "p99 4 ms" in clock
    assert "by words" in tokens
    assert "finish_reason" in checks


def test_the_other_tool_gets_the_same_times_and_lengths_but_prompts_of_its_own():
    ours, theirs = paired_traffic(source(), WORKLOAD)
    assert ours.arrivals.tolist() == theirs.arrivals.tolist()
    assert [r.maximum_tokens for r in ours.requests] == [r.maximum_tokens for r in theirs.requests]
    assert not {r.prompt for r in ours.requests} & {r.prompt for r in theirs.requests}
    assert all(r == LoadRequest(r.prompt, r.maximum_tokens) for r in (*ours.requests, *theirs.requests))


def test_the_traffic_is_measured_by_both_and_no_secret_is_handed_on(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program(tmp_path, LEAVES)))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    directory = tmp_path / "opinion"
    with ScriptedServer() as server:
        opinion = second_opinion(POLICY, Endpoint(url=server.url), source(), WORKLOAD, directory)
    assert opinion.tool == "aiperf 0.13.0"
    assert opinion.figures["failed requests"] == (1.0, 0.0)
    assert "no tokenizer" in opinion.differences[1]
    rows = [json.loads(line) for line in (directory / "trace.jsonl").read_text().splitlines()]
    arrivals = paired_traffic(source(), WORKLOAD)[1].arrivals
    np.testing.assert_allclose([row["timestamp"] for row in rows], 1e3 * arrivals, atol=1e-3)
    assert rows[0]["payload"].keys() == server.seen[0].keys()
    assert "hunter2" not in "".join(path.read_text() for path in directory.rglob("*") if path.is_file())


def test_a_tool_without_results_is_no_error_but_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRAM_VARIABLE, str(program(tmp_path, "exit 1\n")))
    shutil.copytree(EXPORTS, tmp_path / "opinion")  # of an earlier attempt
    with ScriptedServer() as server:
        opinion = second_opinion(POLICY, Endpoint(url=server.url), source(), WORKLOAD, tmp_path / "opinion")
    assert opinion.figures == {}
    assert "no result" in opinion.differences[0]


def test_no_opinion_is_asked_for_without_the_policy_wanting_one(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRAM_VARIABLE, "/nowhere/aiperf")
    policy = POLICY.model_copy(update={"second_opinion": None})
    assert second_opinion(policy, ENDPOINT, source(), WORKLOAD, tmp_path) is None


def test_a_missing_tool_and_an_endpoint_with_secrets_are_refused_before_any_traffic(tmp_path, monkeypatch):
    monkeypatch.setenv(PROGRAM_VARIABLE, "/nowhere/aiperf")
    with pytest.raises(ConfigError, match=PROGRAM_VARIABLE):
        second_opinion(POLICY, ENDPOINT, source(), WORKLOAD, tmp_path)
    monkeypatch.delenv(PROGRAM_VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="not installed"):
        require_tool(ENDPOINT)
    found = program(tmp_path, "")
    assert require_tool(ENDPOINT) == found
    with pytest.raises(ConfigError, match="command line"):
        require_tool(Endpoint(url=ENDPOINT.url, header_variables={"x-key": "KEY"}))


def test_a_tool_that_does_not_end_is_killed_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(aiperf, "_START_SECONDS", 0.5 - aiperf.REQUEST_TIMEOUT_SECONDS)
    stuck = program(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/own; wait\n")
    traffic = Traffic.open_loop([LoadRequest("a", 2)], np.zeros(1), 0.1)
    started = time.monotonic()
    with pytest.raises(Transient, match="did not end within 1 s"):
        run_aiperf(stuck, ENDPOINT, traffic, tmp_path / "opinion")
    assert time.monotonic() - started < 40.0
    pids = [int((tmp_path / name).read_text()) for name in ("child", "own")]
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"

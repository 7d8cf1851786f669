"""The exports are of real runs against Triton: five requests by aiperf 0.13.0, one refused; four by perf_analyzer."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import loadgen_peers as peers
from benchmarks.loadgen_peers import AIPERF_SUMMARY, read_aiperf, read_perf_analyzer, run_aiperf
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic

EXPORTS = Path(__file__).parent / "exports"
ENDPOINT = Endpoint(url="http://127.0.0.1:9/triton")
TRAFFIC = Traffic.open_loop([LoadRequest("a", 2), LoadRequest("b", 3)], np.array([0.0, 0.05]), 0.1)
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


def test_aiperf_is_given_the_traffic_and_none_of_our_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    directory = tmp_path / "run"
    assert run_aiperf(program(tmp_path, LEAVES), ENDPOINT, TRAFFIC, directory).tool == "aiperf 0.13.0"
    rows = [json.loads(line) for line in (directory / "trace.jsonl").read_text().splitlines()]
    assert [row["timestamp"] for row in rows] == [0.0, 50.0]
    assert [row["payload"]["text_input"] for row in rows] == ["a", "b"]
    assert "hunter2" not in "".join(path.read_text() for path in directory.rglob("*") if path.is_file())


def test_a_run_without_results_is_no_earlier_ones(tmp_path):
    shutil.copytree(EXPORTS, tmp_path / "run")
    with pytest.raises(IntegrityError, match="no readable export"):
        run_aiperf(program(tmp_path, "exit 1\n"), ENDPOINT, TRAFFIC, tmp_path / "run")


def test_a_tool_that_does_not_end_is_killed_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_START_SECONDS", 0.5 - peers.REQUEST_TIMEOUT_SECONDS)
    stuck = program(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/own; wait\n")
    started = time.monotonic()
    with pytest.raises(Transient, match="did not end within 1 s"):
        run_aiperf(stuck, ENDPOINT, TRAFFIC, tmp_path / "opinion")
    assert time.monotonic() - started < 40.0
    pids = [int((tmp_path / name).read_text()) for name in ("child", "own")]
    assert not [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"

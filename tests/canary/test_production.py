"""Canary, settlement and both ways back through the stage contract: real Triton servers, real Envoy, live users."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from production_site import MODEL_PYTHON, ROOT, TRITON_HOME, Production, result, verdict

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.record import Phase, read_canary_record
from llm_pipeline.canary.timeline import read_timeline
from llm_pipeline.cli import main
from llm_pipeline.operations.guard import guard_once
from llm_pipeline.release.contract import StageFailure
from llm_pipeline.serving.triton_server import find_server

pytestmark = pytest.mark.slow


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    if not TRITON_HOME.exists() or not MODEL_PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    place = Production(tmp_path)
    try:
        yield place
    finally:
        place.down()


def test_a_release_is_promoted_settled_brought_back_and_tried_again_without_a_lost_request(production) -> None:
    first = production.canary("r1", 50)
    assert first.judgement is not None
    assert first.judgement.summary == "first deployment on this target"
    result(production.settle("r1"))
    assert production.releases() == ("r1", None)
    assert (production.state("blue") / "repository/llm/1/linked/weights").is_file()
    production.users()

    step = production.canary("r2", 50)
    assert verdict(step) is Verdict.GO
    assert (step.metrics["phase"], step.metrics["passed_percent"], step.metrics["attempt"]) == ("passed", 50.0, 1)
    assert step.metrics["candidate_requests"] >= 10
    summary = read_timeline(production.store.fetch(step.artifacts["canary"]))
    assert [event.kind for event in summary.events] == ["started", "shifted", "step passed"]
    assert sum(point.candidate.requests for point in summary.points) >= 10
    assert summary.evidence is not None
    assert [len(look.regressed) for look in summary.evidence.looks[:1]] == [len(summary.evidence.metrics)]
    assert production.canary("r2", 100).metrics["phase"] == "promoted"
    settled = result(production.settle("r2"))
    assert (settled.metrics["production"], settled.metrics["slot"], settled.metrics["previous"]) == (
        "r2",
        "green",
        "r1",
    )
    again = production.canary("r2", 50)
    assert again.judgement is not None
    assert again.judgement.summary == "already in production"
    assert production.rollback("r2").metrics["phase"] == "promoted"
    assert (production.weights(), production.answered_by()) == ({"green": 10_000}, "r2")

    production.roll_back()
    production.roll_back()  # asked again, nothing is changed
    assert production.releases() == ("r1", None)
    assert (production.weights(), production.serves("blue")) == ({"blue": 10_000}, "r1")
    assert (production.serves("green"), production.answered_by()) == (None, "r1")
    refused = production.settle("r2")
    assert isinstance(refused, StageFailure)
    assert refused.error.type == "NotPromoted"

    retried = production.canary("r2", 50, run="second run")
    assert (verdict(retried), retried.metrics["attempt"]) == (Verdict.GO, 2)
    assert production.weights() == {"blue": 5_000, "green": 5_000}
    undone = production.rollback("r2")
    assert (undone.metrics["phase"], undone.metrics["traffic_confirmed"]) == ("rolled back", 1)
    assert (production.weights(), production.serves("green")) == ({"blue": 10_000}, None)
    assert production.releases() == ("r1", None)
    record = read_canary_record(production.store, "r2", "cpu")
    assert record is not None
    assert (record.phase, record.attempt) == (Phase.ROLLED_BACK, 2)
    users = production.users_go()
    assert users.failed == 0, users.reasons
    assert users.sent == users.ok


def assert_documented_requests_are_answered(port: int) -> None:
    """Blocks of docs/requests.md, as they stand there but for the port; the chat needs a model that chats."""
    blocks = re.findall(
        r"^```(bash|python)\n(.*?)^```", (ROOT / "docs/requests.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert [language for language, _ in blocks] == ["python", "bash", "bash"]
    said = []
    for _, block in blocks[1:]:
        done = subprocess.run(
            ["bash", "-euc", block.replace("18000", str(port))], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    whole, pieces = said
    assert "HTTP/1.1 200" in whole
    assert "x-llm-release: r1" in whole
    assert json.loads(whole.splitlines()[-1])["text_output"] == " 7 + 5 = 7 + 5 ="
    assert pieces.count("data: {") > 1


def test_production_is_stopped_and_started_by_command_and_status_says_how_it_is(
    production, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(production.deployment_file()))

    def said(*command: str) -> tuple[int, str]:
        return main(list(command)), capsys.readouterr().out

    production.deploy_first()
    capsys.readouterr()
    code, words = said("status")
    assert code == 0, words
    assert "cpu: healthy (users are served)" in words
    assert "r1 of demo/tiny (int8) in blue since" in words
    assert "answers, r1, 100 % of the traffic" in words
    assert f"envoy runs, http://127.0.0.1:{production.router_port}" in words
    assert_documented_requests_are_answered(production.router_port)
    place = json.loads(said("status", "cpu", "--json")[1])["places"][0]
    assert (place["health"], place["servers"][0]["digest"]) == ("healthy", production.repositories["r1"].digest)

    assert said("stop", "cpu", "--yes") == (0, "cpu: stopped the router, the server in blue\n")
    assert said("stop", "--yes") == (0, "cpu: nothing ran, nothing was stopped\n")
    assert guard_once(production.store, production.deployment) == []  # it starts what ended, not what was stopped
    code, words = said("status")
    assert (code, "cpu: stopped" in words, "PROBLEM" in words) == (5, True, False)

    for _ in range(2):
        code, words = said("start")
        assert (code, "r1 of demo/tiny serves in blue" in words, "cpu: healthy" in words) == (0, True, True)
    assert (production.weights(), production.serves("blue")) == ({"blue": 10_000}, "r1")

    server = find_server(production.state("blue"))
    assert server is not None
    os.killpg(server.pid, signal.SIGKILL)
    code, words = said("status")
    assert (code, "cpu: dead (no server answers users)" in words) == (5, True)
    assert "all servers are dead" in words


@pytest.mark.thorough
def test_a_second_release_where_nobody_asks_is_judged_by_replayed_prompts_and_says_so(production) -> None:
    production.deploy_first()
    production.policy |= {"maximum_bake_seconds": 3}
    silent = production.canary("r2", 50)
    assert silent.judgement is not None
    assert (verdict(silent), silent.judgement.summary) == (Verdict.INCONCLUSIVE, "too little traffic to compare with")
    assert "replay_requests_per_second" in silent.judgement.evidence[0].detail

    production.policy |= {"maximum_bake_seconds": 120, "replay_requests_per_second": 40}
    step = production.canary("r2", 50, run="second run")
    assert step.judgement is not None
    assert verdict(step) is Verdict.GO, step.judgement
    assert "requests were replayed prompts of the workload" in step.judgement.summary
    assert verdict(production.canary("r2", 100, run="second run")) is Verdict.GO
    result(production.settle("r2"))
    assert production.answered_by() == "r2"

"""Background users against a real server process, that fails, goes away, or takes its time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from waiting import until

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.demo.traffic import TrafficRecord

UPSTREAM = Path(__file__).parents[1] / "canary" / "upstream.py"


class Site:
    """One server and its users, as processes."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.record_file = root / "traffic.json"
        self.prompts = root / "prompts.jsonl"
        self.prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
        self._started: list[detached.DetachedProcess] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, **drill: float) -> None:
        environment = {**os.environ, "LLM_PIPELINE_DRILL": json.dumps(drill)}
        command = [sys.executable, str(UPSTREAM), "blue", "0", str(self.port)]
        self._start("server", command, environment)
        until(lambda: socket.socket().connect_ex(("127.0.0.1", self.port)) == 0)

    def users(self, rate: float = 40) -> detached.DetachedProcess:
        command = [sys.executable, "-m", "llm_pipeline.demo.traffic", "--url", self.url, "--rate", str(rate)]
        command += ["--record", str(self.record_file), "--prompts", str(self.prompts)]
        return self._start("users", command, dict(os.environ))

    def record(self) -> TrafficRecord:
        there = self.record_file.exists()
        return TrafficRecord.model_validate_json(self.record_file.read_text()) if there else TrafficRecord()

    def counted(self, outcome: str) -> int:
        return int(getattr(self.record(), outcome))

    def down(self) -> None:
        for process in self._started:
            detached.stop(process)

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> detached.DetachedProcess:
        record, log = self.root / f"{name}.json", self.root / f"{name}.log"
        self._started.append(detached.start(name, command, record, log=log, environment=environment))
        return self._started[-1]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path)
    yield place
    place.down()


def test_users_survive_a_server_that_fails_or_is_down_and_a_lost_request_counts_with_its_reason(site) -> None:
    users = site.users()
    until(lambda: site.counted("failed") >= 5)
    assert site.counted("ok") == 0
    assert users.alive
    site.serve()
    until(lambda: site.counted("ok") >= 20)
    detached.stop(users)
    record = site.record()
    assert record.sent == record.ok + record.failed
    assert sum(record.reasons.values()) == record.failed
    assert all("Cannot connect" in reason for reason in record.reasons), record.reasons


def test_at_the_end_requests_in_flight_get_their_answers_and_the_last_record_accounts_for_all(site) -> None:
    site.serve(delay_milliseconds=1500.0)
    users = site.users()
    until(lambda: site.counted("sent") >= 10)
    assert site.counted("ok") == 0, "none can be answered yet"
    os.kill(users.pid, signal.SIGTERM)
    asked = time.monotonic()
    until(lambda: not users.alive)
    assert time.monotonic() - asked > 1.0, "it waited for its answers"
    record = site.record()
    assert (record.sent, record.failed) == (record.ok, 0)
    assert record.sent >= 10


def test_without_prompts_the_users_say_what_is_wrong(site) -> None:
    site.prompts.write_text("")
    command = [sys.executable, "-m", "llm_pipeline.demo.traffic", "--url", site.url]
    command += ["--record", str(site.record_file), "--prompts", str(site.prompts)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == ExitCode.BAD_INPUT
    assert "no prompts" in ended.stderr
    assert not site.record_file.exists()

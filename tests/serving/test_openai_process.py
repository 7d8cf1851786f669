"""The process that speaks OpenAI's API beside a real Triton: it starts, is found, is started again and ends with it."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from llm_pipeline.artifacts.repository_layout import ENDPOINT_FILE
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.serving.triton_server import ServerFailed, find_server, has_ended, is_running

pytestmark = pytest.mark.slow


def pid_of(slot) -> int:
    return int(json.loads((slot.state / "openai.process.json").read_text())["pid"])


def models(slot) -> list[str]:
    answer = call(f"http://127.0.0.1:{slot.ports.openai}/v1/models", seconds=20)
    return [card["id"] for card in json.loads(answer.text)["data"]]


def test_it_answers_once_the_server_is_ready_and_ends_with_it(slot):
    server = slot.start()
    assert models(slot) == ["toy"]
    assert server.ready
    os.killpg(pid_of(slot), signal.SIGSTOP)
    assert not server.ready, "it is ready with its API only"
    os.killpg(pid_of(slot), signal.SIGCONT)
    slot.stop()
    assert not has_ended(slot.state)
    with pytest.raises(OSError):
        call(f"http://127.0.0.1:{slot.ports.openai}/health", seconds=5)


def test_one_that_has_ended_is_reported_and_started_again_without_the_server(slot):
    server = slot.start()
    os.kill(pid_of(slot), signal.SIGKILL)
    assert wait_until(lambda: has_ended(slot.state), 5)
    assert not is_running(slot.state)
    assert slot.start().pid == server.pid
    assert models(slot) == ["toy"]
    assert is_running(slot.state)


def test_a_worker_that_is_killed_is_started_again_and_who_asks_meanwhile_waits(slot):
    server = slot.start()
    children = psutil.Process(pid_of(slot)).children()
    (worker,) = (child for child in children if "spawn_main" in " ".join(child.cmdline()))
    worker.kill()
    assert models(slot) == ["toy"]
    assert server.ready
    assert not worker.is_running()


def test_what_keeps_it_from_starting_is_the_servers_failure(slot):
    (slot.repository / "llm" / "1" / ENDPOINT_FILE).write_text("{}")
    with pytest.raises(ServerFailed, match="OpenAI's API ended"):
        slot.start()
    assert find_server(slot.state) is None

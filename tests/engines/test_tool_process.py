"""A build's tool as a process: what it says, what it is given, and that nothing of it is left."""

from __future__ import annotations

import time

import psutil
import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.engines.failures import BuildFailed
from llm_pipeline.engines.tool_process import run_tool

STARTS_A_RANK = ["sh", "-c", "setsid sleep 600 & echo $!; wait"]  # a shell has started one long before the limit


def test_its_lines_are_kept_in_their_order_and_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    run_tool(["sh", "-c", "echo one; echo two >&2; echo; echo three"], time_limit_seconds=10)
    assert [record.getMessage() for record in caplog.records] == ["one", "two", "three"]


def test_at_the_time_limit_what_it_started_ends_with_it(caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    with pytest.raises(BuildFailed, match=r"ranks was stopped after its time limit of 0\.02 min"):
        run_tool(STARTS_A_RANK, name="ranks", time_limit_seconds=1.2)
    rank = int(caplog.records[0].getMessage())
    deadline = time.monotonic() + 120
    while psutil.pid_exists(rank) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(rank)


def test_no_secret_is_handed_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "LLM_PIPELINE_SIGNING_PASSWORD", "AIRFLOW__CORE__FERNET_KEY"):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    run_tool(["env"], time_limit_seconds=10, variables={"HF_HUB_OFFLINE": "1"})
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "hidden" in line]
    assert {"TOKENIZERS_PARALLELISM=false", "HF_HUB_OFFLINE=1"} <= set(lines)


def test_a_failure_is_told_with_its_name_and_last_lines():
    with pytest.raises(BuildFailed, match=r"false-friend ended with exit code 3.*\nbroken"):
        run_tool(["sh", "-c", "echo broken; exit 3"], name="false-friend", time_limit_seconds=10)
    with pytest.raises(ConfigError, match="cannot start no-such-tool"):
        run_tool(["no-such-tool"], time_limit_seconds=10)


@pytest.mark.parametrize("code", [0, 3])
def test_what_it_started_ends_with_it_also_when_it_ends_by_itself(code: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    try:
        run_tool(["sh", "-c", f"setsid sleep 600 >/dev/null 2>&1 & echo $!; exit {code}"], time_limit_seconds=60)
    except BuildFailed:
        assert code
    rank = int(caplog.records[0].getMessage())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(rank) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(rank)

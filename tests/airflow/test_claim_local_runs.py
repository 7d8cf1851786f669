"""Two releases of one model on one machine, run by `llm-pipeline run`: real processes, stages that do no work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from llm_pipeline.base import detached
from llm_pipeline.base.errors import ExitCode
from llm_pipeline.local_run import ask_on_terminal

pytestmark = pytest.mark.slow

SMALL = {"recipes: [small, large]": "recipes: [small]", "targets: [cpu-a, cpu-b]": "targets: [cpu-a]"}
QUICK_END = {"download": {"error": "terminal"}}


class Run:
    """`llm-pipeline run` of one release config."""

    def __init__(self, config: Path, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "llm_pipeline", "run", str(config), "--approve"]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stderr=output)

    def said(self, text: str) -> bool:
        return text in self.log.read_text()

    def end(self) -> int:
        return self.process.wait(timeout=600)


@pytest.fixture
def run(project) -> Iterator[Callable[..., Run]]:
    """Starts a run of a config made from the project's."""
    started = []
    written = project.config.read_text()

    def start(name: str) -> Run:
        text = written
        for before, after in SMALL.items():
            text = text.replace(before, after)
        config = project.config.with_name(f"{name}.yaml")
        config.write_text(text)
        started.append(Run(config, project.root / f"{name}.log"))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def test_a_release_whose_process_was_killed_is_taken_over_at_once(project, run):
    project.script(resolve={"seconds": 1, "file": str(project.root / "started")}, **QUICK_END)
    killed = run("killed")
    until((project.root / "started").exists)
    killed.process.kill()
    killed.process.wait()
    following = run("following")
    assert following.end() == ExitCode.BAD_INPUT
    assert following.said(f"release killed (process {killed.process.pid} on ")
    assert following.said("no longer counts: its process is gone")
    assert not following.said("waiting for release")


@pytest.mark.thorough
def test_what_a_killed_run_left_is_ended_by_stop_once_and_nothing_of_a_run_that_lives(project, run):
    never = {"until": str(project.root / "never"), "file": str(project.root / "started")}
    project.script(download=never)
    killed = run("killed")
    until((project.root / "started").exists)
    (left,) = [record for record in stages_running(project) if record.name == "stage download"]
    assert "is on its way, and ends what it has staged itself" in stop(project)
    assert left.alive
    killed.process.kill()
    killed.process.wait()
    assert "stopped stage download" in stop(project)
    assert not left.alive
    assert "stopped" not in stop(project).replace("nothing was stopped", "")


def stages_running(project) -> list[detached.DetachedProcess]:
    found = [detached.load(record) for record in project.root.rglob("process.json")]
    return [process for process in found if process is not None and process.alive]


def stop(project) -> str:
    deployment = project.root / "configs/deployments/here.yaml"
    command = [sys.executable, "-m", "llm_pipeline", "stop", "--yes", "--deployment", str(deployment)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


def test_without_a_terminal_nobody_can_be_asked():
    assert ask_on_terminal("Well?") is None

"""Stages hold the GPUs of their host themselves: the slot of a lost worker goes to others while its stage runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployment_here import place_document
from store_history import TARGET, History

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.file_lock import flocked_within
from llm_pipeline.base.records import Frozen
from llm_pipeline.config.deployment import QuantizationHost, TargetPlace, WorkerGroup, Workers
from llm_pipeline.release import execute as execution
from llm_pipeline.release.contract import HostGpus, Stage, StageOutput, StageRequest, StageResult
from llm_pipeline.release.gpu_slots import gpu_indices, gpus_taken, held
from llm_pipeline.release.record import read_release_record

HOLDER = """
import sys, time
from pathlib import Path
from llm_pipeline.release.contract import HostGpus
from llm_pipeline.release.gpu_slots import held
with held(HostGpus(pool="gpus", there=2, taken=int(sys.argv[2])), Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on a file."""
    try:
        with flocked_within(path, 0, Transient("held")):
            return False
    except Transient:
        return True


@contextmanager
def another_stage(root: Path, taken: int):
    command = [sys.executable, "-c", HOLDER, str(root), str(taken)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def in_the_background(root: Path, taken: int) -> tuple[threading.Thread, threading.Event]:
    begun = threading.Event()

    def work() -> None:
        with held(HostGpus(pool="gpus", there=2, taken=taken), root):
            begun.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, begun


def test_a_stage_waits_for_gpus_that_another_process_holds_until_it_is_killed(tmp_path):
    with another_stage(tmp_path, 2) as holder:
        thread, begun = in_the_background(tmp_path, 1)
        assert not begun.wait(1.5)
        os.kill(holder.pid, signal.SIGKILL)
        thread.join(60)
        assert begun.is_set()


def test_as_many_stages_as_there_are_gpus_run_at_once(tmp_path):
    with another_stage(tmp_path, 1):
        _, begun = in_the_background(tmp_path, 1)
        assert begun.wait(60)


def test_a_stage_of_two_gpus_is_not_starved_by_those_of_one(tmp_path):
    with another_stage(tmp_path, 1) as first:
        _, of_two = in_the_background(tmp_path, 2)
        until(lambda: is_locked(tmp_path / "gpus/gpus.turn"))
        _, of_one = in_the_background(tmp_path, 1)
        assert not of_one.wait(1.0)
        first.kill()
        assert of_two.wait(60)
        assert of_one.wait(60)


class _Config(Frozen):
    pass


def test_a_stage_that_computes_holds_them_and_one_that_is_reused_does_not(tmp_path, monkeypatch):
    seen: list[bool] = []
    gpus = HostGpus(pool="gpus", there=1, taken=1)

    def run(_context) -> StageOutput:
        seen.append(is_locked(tmp_path / "work/gpus/gpus.0"))
        return StageOutput()

    stage = Stage(name="quantize", version=1, config=_Config, run=run, publishes=False)
    monkeypatch.setattr(execution, "load_stage", lambda _name: stage)
    history = History(tmp_path)
    request = StageRequest(
        release_id=history.resolve(1), stage="quantize", subject="fp8", config={}, store=history.deployment.store,
        work_root=str(tmp_path / "work"), gpus=gpus,
    )  # fmt: skip
    assert isinstance(execution.execute(request), StageResult)
    assert seen == [True]
    with held(gpus, tmp_path / "work"):
        again = execution.execute(request)
    assert isinstance(again, StageResult)
    assert seen == [True]


@pytest.fixture
def release(tmp_path):
    history = History(tmp_path)
    workers = Workers(
        quantization=WorkerGroup(pool="of-models", gpus=8), targets={TARGET: WorkerGroup(pool="of-targets", gpus=4)}
    )
    host = QuantizationHost(accelerator="H100-SXM-80GB", count=2, gpus=(2, 3))
    place = place_document(iter(range(18000, 18020)))
    places = {TARGET: TargetPlace.model_validate(place | {"staging": place["staging"] | {"gpus": [1]}})}
    update = {"workers": workers, "quantization_host": host, "places": places}
    deployment = history.deployment.model_copy(update=update)
    return deployment, read_release_record(history.store, history.resolve(1))


@pytest.mark.parametrize(
    ("stage", "subject", "wanted"),
    [
        ("quantize", "fp8", HostGpus(pool="of-models", there=8, taken=2)),
        ("build", TARGET, HostGpus(pool="of-targets", there=4, taken=1)),
        ("choose", TARGET, None),
        ("canary", f"{TARGET}:5", None),
        ("download", "", None),
    ],
)
def test_who_takes_gpus_of_the_flow_holds_them(release, stage, subject, wanted):
    assert gpus_taken(*release, stage, subject) == wanted


@pytest.mark.parametrize(
    ("stage", "subject", "seen"),
    [("baseline", "", (2, 3)), ("accuracy", "fp8", (2, 3)), ("build", TARGET, (1,)), ("choose", TARGET, None)],
)
def test_a_stage_sees_the_gpus_of_its_place_only(release, stage, subject, seen):
    assert gpu_indices(*release, stage, subject) == seen

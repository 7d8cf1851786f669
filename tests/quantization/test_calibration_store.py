from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from llm_pipeline.base.progress import last_progress
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.quantization.calibration_store import KIND, calibration_document, shared_calibration
from llm_pipeline.store import lease, open_store
from llm_pipeline.store.lease import LeaseState
from llm_pipeline.store.provenance import Provenance

KEY = "0" * 64


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def calibrate(store, tmp_path):
    """Ask for the calibration from a machine of that name; `calibrate.made` counts how often it was made."""

    def ask(machine="one"):
        def compute(directory):
            ask.made += 1
            directory.mkdir(parents=True)
            (directory / "state").write_text("calibrated")

        return shared_calibration(store, KEY, tmp_path / machine / "calibration", compute, Provenance())

    ask.made = 0
    return ask


def artifact(store):
    document = store.read_document(calibration_document(KEY))
    return ArtifactRef.model_validate(LeaseState.model_validate(document.value).conclusion["artifact"])


def test_it_is_made_once_and_found_from_anywhere(store, calibrate):
    assert calibrate()[1] == "computed"
    directory, origin = calibrate("another")
    assert (origin, calibrate.made) == ("restored", 1)
    assert (directory / "state").read_text() == "calibrated"
    assert artifact(store).kind == KIND


def test_what_an_attempt_left_when_it_was_killed_is_published_by_the_next(calibrate, tmp_path):
    (tmp_path / "one/calibration").mkdir(parents=True)
    (tmp_path / "one/calibration/state").write_text("calibrated")
    assert calibrate()[1] == "restored"
    assert calibrate("another")[1] == "restored"
    assert calibrate.made == 0


def test_one_that_was_removed_is_made_again(store, calibrate):
    calibrate()
    store.remove(artifact(store))
    assert calibrate("another")[1] == "computed"
    assert calibrate("third")[1] == "restored"


def test_one_that_is_damaged_is_made_again(store, calibrate):
    directory = store.fetch(artifact(store)) if calibrate() else None
    (directory / "state").chmod(0o600)
    (directory / "state").write_text("something else")
    assert calibrate("another")[1] == "computed"
    assert calibrate("third")[1] == "restored"


def test_who_needs_it_while_it_is_made_waits_for_it(store, tmp_path, monkeypatch):
    begun, go_on, waiting = threading.Event(), threading.Event(), threading.Event()
    made, outcomes = [], {}

    def ask(machine):
        def compute(directory):
            made.append(machine)
            begun.set()
            assert go_on.wait(30)
            directory.mkdir(parents=True)
            (directory / "state").write_text("calibrated")

        outcomes[machine] = shared_calibration(store, KEY, tmp_path / machine, compute, Provenance())[1]

    def slept(_seconds):
        time.sleep(0.01)
        waiting.set()

    monkeypatch.setattr(lease, "time", SimpleNamespace(time=time.time, sleep=slept))
    before = time.monotonic()
    first = threading.Thread(target=ask, args=("first",))
    second = threading.Thread(target=ask, args=("second",))
    first.start()
    assert begun.wait(30)
    second.start()
    assert waiting.wait(30)
    assert last_progress() > before, "the time limit of who waits goes on"
    go_on.set()
    first.join(30)
    second.join(30)
    assert made == ["first"]
    assert outcomes == {"first": "computed", "second": "restored"}

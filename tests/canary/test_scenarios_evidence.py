"""What a canary may be judged by: too little traffic, no metrics, wrong names, a clock that jumps."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.access_log import AccessLog
from llm_pipeline.canary.record import PauseReason, Phase
from llm_pipeline.canary.router import ALL
from llm_pipeline.operations import approval

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


class SourceOff(AccessLog):
    """The access log behind a source of metrics that may not answer."""

    down = False

    def read(self, cursor, most_bytes=2**62):
        if self.down:
            raise Transient("connection refused")
        return super().read(cursor, most_bytes)


class Mislabelled(AccessLog):
    """Every request is counted for stable, as by a source whose label names one arm wrongly."""

    wrong = True

    def read(self, cursor, most_bytes=2**62):
        found, end = super().read(cursor, most_bytes)
        return [self._named(request) for request in found], end

    def _named(self, request):
        return replace(request, arm="blue", on_trial=False) if self.wrong else request


def log_of(trial, kind: type[AccessLog]) -> AccessLog:
    router = trial.site.router
    return kind(router.files.access_log, router.slot_of_address)


def test_a_step_with_too_little_traffic_keeps_its_weights_and_asks_and_a_denial_rolls_back(trial) -> None:
    trial.policy |= {"on_undecided": "pause", "minimum_requests": 30, "maximum_bake_seconds": 1.0}
    judgement = trial.step(1)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    record = trial.record
    assert record.pause is not None
    assert (record.phase, record.pause.reason) == (Phase.PAUSED, PauseReason.UNDECIDED)
    assert trial.site.weights() == {trial.stable: ALL - 100, trial.candidate: 100}
    approval.answer(trial.site.store, trial.release_id, "cpu", 1, approved=False, by="alice")
    assert trial.step(1).verdict is Verdict.NO_GO
    assert trial.record.phase is Phase.ROLLED_BACK
    assert trial.site.weights() == {trial.stable: ALL}
    assert trial.events == ["started", "shifted", "paused", "denied", "rolling back", "rolled back"]
    assert trial.lost == {}


def test_without_metrics_before_the_first_step_no_traffic_is_shifted(trial) -> None:
    trial.policy["maximum_bake_seconds"] = 1.0
    log = trial.site.router.files.access_log
    aside = log.rename(log.with_name("elsewhere"))
    try:
        judgement = trial.step(1)
    finally:
        aside.rename(log)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert trial.record.phase is Phase.ROLLED_BACK
    assert trial.events == ["started", "rolling back", "rolled back"]
    assert trial.lost == {}


def test_without_metrics_during_a_bake_nothing_advances_and_it_goes_on_when_they_are_back(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 1.0, "look_seconds": 0.05}
    source = trial.access_log = log_of(trial, SourceOff)
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    source.down = True
    judgement = running.result(timeout=80)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    record = trial.record
    assert record.pause is not None
    assert (record.phase, record.pause.reason) == (Phase.PAUSED, PauseReason.NO_SOURCE)
    assert trial.site.weights() == {trial.stable: ALL // 2, trial.candidate: ALL // 2}
    source.down = False
    assert trial.step(50).verdict is Verdict.GO
    assert trial.lost == {}


def test_a_source_that_names_one_arm_wrongly_pauses_and_is_no_verdict_about_the_candidate(trial) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 5.0}
    source = trial.access_log = log_of(trial, Mislabelled)
    judgement = trial.step(50)
    assert judgement.verdict is Verdict.ANOMALOUS
    record = trial.record
    assert record.pause is not None
    assert (record.phase, record.pause.reason) == (Phase.PAUSED, PauseReason.WRONG_SPLIT)
    assert trial.site.weights() == {trial.stable: ALL // 2, trial.candidate: ALL // 2}
    trial.policy["minimum_bake_seconds"], source.wrong = 0.8, False
    assert trial.step(50).verdict is Verdict.GO
    assert trial.lost == {}


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_jumps_in_a_bake_neither_ends_it_nor_lengthens_it(trial, monkeypatch, hours) -> None:
    trial.policy |= {"steps_percent": (50.0, 100.0), "minimum_bake_seconds": 2.0, "maximum_bake_seconds": 60.0}
    running = trial.start(50)
    trial.await_phase(Phase.BAKING, 50)
    time.sleep(0.5)
    began, clock = time.monotonic(), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 3600 * hours)
    assert running.result(timeout=80).verdict is Verdict.GO
    assert time.monotonic() - began > 1.0
    assert trial.record.phase is Phase.PASSED
    assert trial.lost == {}

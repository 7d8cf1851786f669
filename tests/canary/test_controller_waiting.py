"""Canaries that wait for a person, and what ends the waiting: the controller's logic on a target in memory."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from simulated import Site

from llm_pipeline.canary.people import answer, read_approval
from llm_pipeline.canary.record import PauseReason, Phase
from llm_pipeline.canary.router import Patience
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.rollback import ensure_rolled_back

pytestmark = pytest.mark.usefixtures("fast")

LITTLE_TRAFFIC = {"minimum_requests": 10_000}


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


def undecided(site: Site, **policy: object) -> None:
    """A step that sees too little traffic to be decided; the thresholds were fixed from enough of it."""
    assert site.step(20).verdict == "GO"
    site.policy |= {**LITTLE_TRAFFIC, **policy}


def approve(site: Site, percent: float, *, approved: bool = True, run: str = "") -> tuple[bool, str]:
    answered = answer(site.store, "r1", "cpu", percent, approved=approved, by="alice", run=run)
    return answered.counted, answered.message


def pause(site: Site) -> PauseReason | None:
    record = site.record()
    return record.pause.reason if record.phase is Phase.PAUSED and record.pause else None


def test_an_undecided_step_keeps_its_weights_and_waits_for_a_person(site) -> None:
    undecided(site)
    assert site.step(50).verdict == "INCONCLUSIVE"
    assert (pause(site), site.weights()) == (PauseReason.UNDECIDED, {"blue": 5_000, "green": 5_000})
    assert site.step(50).verdict == "INCONCLUSIVE", "a retry of the task answers nothing"
    assert pause(site) is PauseReason.UNDECIDED
    assert approve(site, 50) == (True, "approved: step 50 %")
    passed = site.step(50)
    assert (passed.verdict, passed.summary) == ("GO", "alice let step 50 % pass")
    assert site.record().passed_percent == 50.0


def test_where_stable_fails_and_does_not_start_a_person_decides(site) -> None:
    assert site.step(20).verdict == "GO"
    site.stable_ends, site.stable_starts = True, False
    site.policy |= {"on_undecided": "roll_back", "maximum_bake_seconds": 0.5, "minimum_bake_seconds": 0.4}
    assert site.step(50).verdict == "INCONCLUSIVE"
    assert (pause(site), "blue" in site.running) == (PauseReason.UNDECIDED, False)
    assert site.weights() == {"blue": 5_000, "green": 5_000}


def test_where_too_few_ask_the_verdict_says_what_to_do(site) -> None:
    undecided(site)
    judgement = site.step(50)
    assert judgement.verdict == "INCONCLUSIVE"
    assert "too little traffic: approve the step, or " in judgement.summary
    assert "replay_requests_per_second under canary: of the policy" in judgement.summary
    site.policy["minimum_requests"] = 50
    assert approve(site, 50)[0]
    assert "too little traffic" not in site.step(50).summary


@pytest.mark.parametrize("whole_server", [False, True])
def test_a_candidate_whose_engine_died_is_rolled_back_for_that_reason(site, whole_server) -> None:
    died = "2026-11-28T04:00:00Z vLLM's engine is dead: its process VLLM::Worker_TP1, pid 7, has ended"
    site.deaths = {"blue": "an older one", "green": died}
    assert site.step(20).verdict == "GO"
    if whole_server:
        site.running.discard("green")
    site.faulty = not whole_server
    judgement = site.step(50)
    assert (judgement.verdict, site.weights()) == ("NO_GO", {"blue": 10_000})
    assert judgement.summary.endswith(f"; its log says: {died}")
    assert (judgement.evidence[-1].name, judgement.evidence[-1].detail) == ("candidate's log", died)


def test_a_step_that_needs_an_approval_waits_without_traffic_and_begins_with_it(site) -> None:
    site.policy["approve_before_percent"] = [20, 50]
    waiting = site.step(20)
    assert (waiting.verdict, waiting.summary) == ("INCONCLUSIVE", "step 20 % waits for an approval")
    assert "llm-pipeline approve-step r1 cpu 20" in waiting.evidence[0].detail
    assert (pause(site), site.running) == (PauseReason.APPROVAL, {"blue"})
    assert site.told == []
    approve(site, 20)
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    approve(site, 50)
    assert site.steps(50, 100) == ["GO", "GO"]
    assert [event.by for event in site.record().events if event.kind == "approved"] == ["alice", "alice"]


def test_an_approval_that_runs_ahead_of_its_step_counts_for_its_run_only(site) -> None:
    site.policy["approve_before_percent"] = [20]
    approve(site, 20, run="another run")
    assert site.step(20).verdict == "INCONCLUSIVE"
    approve(site, 20, run="run")
    assert site.step(20).verdict == "GO"


def test_a_denial_rolls_back(site) -> None:
    site.policy["approve_before_percent"] = [50]
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    approve(site, 50, approved=False)
    denied = site.step(50)
    assert (denied.verdict, denied.summary) == ("NO_GO", "alice denied step 50 %")
    assert (site.weights(), site.running) == ({"blue": 10_000}, {"blue"})


def test_an_approval_that_nobody_gives_times_out_and_rolls_back(site) -> None:
    site.policy |= {"approve_before_percent": [50], "pause_deadline_seconds": 0.01}
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    time.sleep(0.02)
    assert "nobody answered" in site.step(50).summary
    assert site.weights() == {"blue": 10_000}
    assert not approve(site, 50)[0]


def test_an_approval_that_comes_after_the_rollback_changes_nothing_and_says_so(site) -> None:
    site.policy["approve_before_percent"] = [50]
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    before = site.record()
    ensure_rolled_back(replace(site.place, patience=Patience(blind_drain=0)), "r1")
    assert approve(site, 50) == (False, "too late, nothing was changed: the canary is rolled back")
    assert site.step(50).verdict == "INCONCLUSIVE"
    assert (site.weights(), before.phase) == ({"blue": 10_000}, Phase.PAUSED)
    approval = read_approval(site.store, "r1", "cpu", 50)
    assert approval is not None
    assert approval.answer == "waiting"


def test_a_source_of_metrics_that_is_down_pauses_and_never_advances(site) -> None:
    assert site.step(20).verdict == "GO"
    site.source_down = True
    judgement = site.step(50)
    assert (judgement.verdict, pause(site)) == ("INCONCLUSIVE", PauseReason.NO_SOURCE)
    assert (site.record().watched_seconds, site.weights()) == (0.0, {"blue": 5_000, "green": 5_000})
    site.source_down = False
    assert site.step(50).verdict == "GO", "it goes on by itself once the source is back"


def test_a_step_to_approve_must_be_a_step() -> None:
    with pytest.raises(ValueError, match="no steps of steps_percent"):
        CanaryPolicy(approve_before_percent=(30.0,))

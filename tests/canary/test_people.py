"""Canaries that wait for people, or that people pause: the controller on a target in memory, and the commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deployment_here import write_deployment
from place_here import canary_record
from simulated import Killed, Site

from llm_pipeline.adapters.local.store import LocalStore
from llm_pipeline.base.errors import Transient
from llm_pipeline.canary import controller, people
from llm_pipeline.canary.people import Reply, answer, ask, pause, resume
from llm_pipeline.canary.record import CanaryJournal, PauseReason, Phase
from llm_pipeline.canary.router import Patience
from llm_pipeline.cli import main
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.rollback import ensure_rolled_back, roll_back
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState, StepApproval, edit_place, read_place

pytestmark = pytest.mark.usefixtures("fast")


FIRST_LOOK = 1
LATER = 40
"""Looks, by now several times the longest bake of the policy if they counted."""

Act = Callable[[], object]


@pytest.fixture
def site(tmp_path) -> Site:
    site = Site(tmp_path)
    site.policy |= {"minimum_bake_seconds": 0.03}  # a look counts for 0.01 s at most: no step passes at its first
    return site


def pause_it(site: Site) -> Reply:
    return pause(site.store, "cpu", by="alice", why="the dashboard looks odd")


def paused_and_killed(site: Site) -> None:
    """A canary that alice paused, whose controller was killed after that."""
    site.at_looks({FIRST_LOOK: lambda: pause_it(site), 20: lambda: setattr(site, "die_at", site.boundary + 1)})
    with pytest.raises(Killed):
        site.step(20)
    site.buried()


def resume_it(site: Site) -> Reply:
    return resume(site.store, "cpu", by="bob")


def test_a_paused_canary_keeps_its_split_for_longer_than_any_bake_and_goes_on_when_it_is_resumed(site) -> None:
    assert site.step(20).verdict == "GO"
    found: list[object] = []

    def look_and_resume() -> None:
        record = site.record()
        found.extend([record.phase, site.weights(), record.watched_seconds])
        time.sleep(0.1)  # twice the longest bake
        resume_it(site)

    told = len(site.told)
    site.at_looks({FIRST_LOOK: lambda: pause_it(site), LATER: look_and_resume})
    assert site.step(50).verdict == "GO"
    assert found[:2] == [Phase.BAKING, {"blue": 5_000, "green": 5_000}]
    assert isinstance(found[2], float)
    assert found[2] < 0.05, "what is paused is no bake"
    assert len(site.told) == told + 1, "shifted to 50 %"
    acts = [(event.kind, event.by) for event in site.record().events if event.by in ("alice", "bob")]
    assert acts == [("paused by a person", "alice"), ("resumed", "bob")]


def test_a_candidate_that_fails_while_it_is_paused_is_rolled_back(site) -> None:
    site.at_looks({FIRST_LOOK: lambda: pause_it(site), 20: lambda: setattr(site, "faulty", True)})
    judgement = site.step(20)
    assert (judgement.verdict, site.weights()) == ("NO_GO", {"blue": 10_000})
    assert "fails request after request" in judgement.summary


def test_a_pause_between_two_steps_begins_no_step_until_it_is_resumed(site) -> None:
    assert site.step(20).verdict == "GO"
    assert pause_it(site).counted
    found: list[dict[str, int]] = []
    site.at_looks({LATER: lambda: found.append(site.weights()) or resume_it(site)})
    assert site.step(50).verdict == "GO"
    assert found == [{"blue": 8_000, "green": 2_000}]


def test_a_killed_controller_is_continued_paused(site) -> None:
    paused_and_killed(site)
    looks = site.at_looks({LATER: lambda: resume_it(site)})
    assert site.step(20).verdict == "GO"
    assert len(looks) > LATER, "the next controller waited for the person"


def test_a_pause_that_nobody_ends_rolls_back_at_its_deadline(site) -> None:
    site.policy["pause_deadline_seconds"] = 0.2
    site.at_looks({FIRST_LOOK: lambda: pause_it(site)})
    judgement = site.step(20)
    assert judgement.summary == "alice paused the canary at 20 %, and nobody resumed it within 0 s"
    assert (judgement.verdict, site.weights()) == ("INCONCLUSIVE", {"blue": 10_000})
    late = resume_it(site)
    assert (late.counted, late.message) == (False, "nothing was changed: the canary of r1 on cpu is rolled back")


@pytest.mark.parametrize("how", ["teardown", "rollback"])
def test_a_paused_canary_is_rolled_back_on_request(site, how) -> None:
    site.serve_first()
    paused_and_killed(site)
    if how == "teardown":
        ensure_rolled_back(site.place, "r1")
    else:
        roll_back(site.place, by="carol")
    assert (site.record().phase, site.weights()) == (Phase.ROLLED_BACK, {"blue": 10_000})
    assert not pause_it(site).counted, "what was taken back cannot be paused"


def test_a_resume_that_comes_between_two_other_words_of_people_takes_nothing_back(site, monkeypatch) -> None:
    really, replies = people.edit_place, []

    def another_was_faster(store: ArtifactStore, place: str, change: Callable[[PlaceState], PlaceState]) -> PlaceState:
        monkeypatch.setattr(people, "edit_place", really)
        resume(store, place, by="carol")
        return really(store, place, change)

    def resume_late() -> None:
        monkeypatch.setattr(people, "edit_place", another_was_faster)
        replies.append(resume_it(site))

    site.at_looks({FIRST_LOOK: lambda: pause_it(site), LATER: resume_late})
    assert site.step(20).verdict == "GO"
    assert not replies[0].counted
    assert "is not paused" in replies[0].message


def test_a_store_that_cannot_be_read_keeps_a_canary_paused(site, monkeypatch) -> None:
    """What was read last counts: a pause must not end because the store has a bad minute."""
    really, down = controller.read_place, []

    def read(*arguments: object) -> object:
        if down:
            raise Transient("the store does not answer")
        return really(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "read_place", read)
    looks = site.at_looks(
        {FIRST_LOOK: lambda: pause_it(site), 20: lambda: down.append(1), LATER: lambda: resume_it(site)}
    )
    site.at_looks({LATER + 20: down.clear})
    assert site.step(20).verdict == "GO"
    assert len(looks) > LATER + 20


def undecided(site: Site) -> None:
    """A step that sees too little traffic to be decided; the thresholds were fixed from enough of it."""
    assert site.step(20).verdict == "GO"
    site.policy["minimum_requests"] = 10_000


def approve(site: Site, percent: float, *, approved: bool = True, run: str = "") -> tuple[bool, str]:
    answered = answer(site.store, "r1", "cpu", percent, approved=approved, by="alice", run=run)
    return answered.counted, answered.message


def paused_for(site: Site) -> PauseReason | None:
    record = site.record()
    return record.pause.reason if record.phase is Phase.PAUSED and record.pause else None


def test_an_undecided_step_keeps_its_weights_and_waits_for_a_person(site) -> None:
    undecided(site)
    judgement = site.step(50)
    assert judgement.verdict == "INCONCLUSIVE"
    assert "too little traffic: approve the step, or " in judgement.summary
    assert "replay_requests_per_second under canary: of the policy" in judgement.summary
    assert (paused_for(site), site.weights()) == (PauseReason.UNDECIDED, {"blue": 5_000, "green": 5_000})
    assert site.step(50).verdict == "INCONCLUSIVE", "a retry of the task answers nothing"
    assert paused_for(site) is PauseReason.UNDECIDED
    assert approve(site, 50) == (True, "approved: step 50 %")
    passed = site.step(50)
    assert (passed.verdict, passed.summary) == ("GO", "alice let step 50 % pass")
    assert site.record().passed_percent == 50.0


def test_where_stable_fails_and_does_not_start_a_person_decides(site) -> None:
    assert site.step(20).verdict == "GO"
    site.stable_ends, site.stable_starts = True, False
    site.policy |= {"on_undecided": "roll_back", "maximum_bake_seconds": 0.5, "minimum_bake_seconds": 0.4}
    assert site.step(50).verdict == "INCONCLUSIVE"
    assert (paused_for(site), "blue" in site.running) == (PauseReason.UNDECIDED, False)
    assert site.weights() == {"blue": 5_000, "green": 5_000}


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


@pytest.mark.parametrize(("share", "percent"), [(2_000, 20), (5_000, 50)])
def test_an_engine_that_died_between_steps_or_in_one_ends_the_canary(site, monkeypatch, share, percent) -> None:
    assert site.step(20).verdict == "GO"
    died = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} vLLM's engine is dead: its process VLLM::EngineCore has ended"
    monkeypatch.setattr(site.slots, "engine_death", lambda _: died if site.weights().get("green") == share else "")
    judgement = site.step(50)
    assert (judgement.verdict, site.weights()) == ("NO_GO", {"blue": 10_000})
    assert judgement.summary == f"the candidate's engine died at {percent} %; its log says: {died}"


def test_a_step_that_needs_an_approval_waits_without_traffic_and_begins_with_it(site) -> None:
    site.policy["approve_before_percent"] = [20, 50]
    waiting = site.step(20)
    assert (waiting.verdict, waiting.summary) == ("INCONCLUSIVE", "step 20 % waits for an approval")
    assert "llm-pipeline approve-step r1 cpu 20" in waiting.evidence[0].detail
    assert (paused_for(site), site.running) == (PauseReason.APPROVAL, {"blue"})
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


@pytest.mark.parametrize("denied", [True, False])
def test_a_denial_and_a_question_that_nobody_answers_roll_back(site, denied: bool) -> None:
    site.policy |= {"approve_before_percent": [50], "pause_deadline_seconds": 100.0 if denied else 0.01}
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    if denied:
        approve(site, 50, approved=False)
    time.sleep(0.02)
    judgement = site.step(50)
    assert judgement.verdict == ("NO_GO" if denied else "INCONCLUSIVE")
    assert ("alice denied step 50 %" if denied else "nobody answered") in judgement.summary
    assert (site.weights(), site.running) == ({"blue": 10_000}, {"blue"})
    assert not approve(site, 50)[0]


def test_an_approval_that_comes_after_the_rollback_changes_nothing_and_says_so(site) -> None:
    site.policy["approve_before_percent"] = [50]
    assert site.steps(20, 50) == ["GO", "INCONCLUSIVE"]
    before = site.record()
    ensure_rolled_back(replace(site.place, patience=Patience(blind_drain=0)), "r1")
    assert approve(site, 50) == (False, "too late, nothing was changed: the canary is rolled back")
    assert site.step(50).verdict == "INCONCLUSIVE"
    assert (site.weights(), before.phase) == ({"blue": 10_000}, Phase.PAUSED)
    approval = read_place(site.store, "cpu").approval("r1", 50)
    assert approval is not None
    assert approval.answer == "waiting"


def test_a_step_to_approve_must_be_a_step() -> None:
    with pytest.raises(ValueError, match="no steps of steps_percent"):
        CanaryPolicy(approve_before_percent=(30.0,))


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    monkeypatch.setenv("LLM_PIPELINE_DEPLOYMENT", str(write_deployment(tmp_path, 18541)))
    store = LocalStore(f"file://{tmp_path}/store")
    store.write_document("releases/r1/release.json", {}, None)
    return store


def test_a_step_is_approved_once_and_a_second_answer_is_told_that_it_is_late(deployment, capsys) -> None:
    asked = StepApproval(release_id="r1", run="run", percent=25, question="begin", asked_at=0.0, deadline_seconds=60)
    ask(deployment, "cpu", asked)
    assert main(["approve-step", "r1", "cpu", "25"]) == 0
    assert capsys.readouterr().out == "approved: step 25 %\n"
    approval = read_place(deployment, "cpu").approval("r1", 25)
    assert approval is not None
    assert (approval.answer, "@" in approval.by) == ("approved", True)
    assert main(["approve-step", "r1", "cpu", "25", "--deny"]) == 2
    assert "too late, nothing was changed: it was approved by" in capsys.readouterr().out


def test_an_answer_to_a_canary_that_does_not_exist_is_refused(deployment, capsys) -> None:
    del deployment
    assert main(["approve-step", "r9", "cpu", "25"]) == 4
    assert "r9" in capsys.readouterr().err


def test_the_guard_says_when_there_is_nothing_to_do(deployment, capsys) -> None:
    del deployment
    assert main(["guard"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert (first.startswith("deployment here, store file://"), second) == (True, "nothing to do")


def test_a_canary_is_paused_once_and_resumed_once(deployment, capsys) -> None:
    assert main(["pause"]) == 4
    assert "nothing is on trial on cpu" in capsys.readouterr().err
    CanaryJournal(deployment, "r1", "cpu").save(canary_record("r1", began_at=1.0))
    edit_place(deployment, "cpu", lambda state: state.model_copy(update={"on_trial": "r1"}))
    assert main(["pause", "cpu", "--reason", "odd"]) == 0
    assert capsys.readouterr().out.startswith("paused: the canary of r1 on cpu keeps its 0 % of the traffic")
    assert main(["pause"]) == 2
    assert "nothing was changed" in capsys.readouterr().out
    assert main(["resume"]) == 0
    assert capsys.readouterr().out == "resumed: the canary of r1 on cpu\n"
    assert main(["resume"]) == 2

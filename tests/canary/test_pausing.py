"""A person pauses a canary that runs, and resumes it: the controller's logic on a target in memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from simulated import Killed, Site

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.canary import controller, people
from llm_pipeline.canary.people import Reply, pause, resume
from llm_pipeline.canary.record import Phase
from llm_pipeline.operations.rollback import ensure_rolled_back, roll_back
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.place_state import PlaceState

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
    assert [kind for kind in site.kinds() if kind in ("paused by a person", "resumed")] == [
        "paused by a person",
        "resumed",
    ]
    assert [event.by for event in site.record().events if event.kind == "resumed"] == ["bob"]


def test_asking_twice_changes_nothing_and_says_who_was_first(site) -> None:
    answers: list[Reply] = []
    asks = [pause, pause, resume, resume]

    def ask() -> None:
        answers.extend(one(site.store, "cpu", by=f"person {number}") for number, one in enumerate(asks))

    site.at_looks({FIRST_LOOK: ask})
    assert site.step(20).verdict == "GO"
    assert [answer.counted for answer in answers] == [True, False, True, False]
    assert answers[1].message.startswith("nothing was changed: person 0 paused the canary of r1 on cpu at ")
    assert answers[3].message == "nothing was changed: the canary of r1 on cpu is not paused"


def test_a_candidate_that_fails_while_it_is_paused_is_rolled_back(site) -> None:
    def fail() -> None:
        site.faulty = True

    site.at_looks({FIRST_LOOK: lambda: pause_it(site), 20: fail})
    judgement = site.step(20)
    assert (judgement.verdict, site.weights()) == ("NO_GO", {"blue": 10_000})
    assert "fails request after request" in judgement.summary


def test_a_pause_between_two_steps_begins_no_step_until_it_is_resumed(site) -> None:
    assert site.step(20).verdict == "GO"
    assert pause_it(site).counted
    found: list[dict[str, int]] = []

    def look_and_resume() -> None:
        found.append(site.weights())
        resume_it(site)

    site.at_looks({LATER: look_and_resume})
    assert site.step(50).verdict == "GO"
    assert found == [{"blue": 8_000, "green": 2_000}]


def test_a_killed_controller_is_continued_paused(site) -> None:
    def die() -> None:
        site.die_at = site.boundary + 1

    site.at_looks({FIRST_LOOK: lambda: pause_it(site), 20: die})
    with pytest.raises(Killed):
        site.step(20)
    site.buried()
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
    assert (late.counted, late.message) == (
        False,
        "too late, nothing was changed: the canary of r1 on cpu is rolled back",
    )


@pytest.mark.parametrize("how", ["teardown", "rollback"])
def test_a_paused_canary_is_rolled_back_on_request(site, how) -> None:
    site.serve_first()

    def back() -> None:
        if how == "teardown":
            ensure_rolled_back(site.place, "r1")
        else:
            roll_back(site.place, by="carol")

    def die_and_roll_back() -> None:
        site.die_at = site.boundary + 1

    site.at_looks({FIRST_LOOK: lambda: pause_it(site), 20: die_and_roll_back})
    with pytest.raises(Killed):
        site.step(20)
    site.buried()
    back()
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
    assert "somebody else" in replies[0].message


def test_a_place_where_nothing_is_on_trial_cannot_be_paused(site) -> None:
    with pytest.raises(ConfigError, match="nothing is on trial on cpu"):
        pause_it(site)
    with pytest.raises(ConfigError, match="nothing is on trial on cpu"):
        resume_it(site)


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

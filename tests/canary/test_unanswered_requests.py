"""Requests that get no answer, or garbage: the controller is real, the site is in memory."""

from __future__ import annotations

import pytest
from simulated import LONGER, Site

pytestmark = pytest.mark.usefixtures("fast")


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("what", ["abandoned", "waiting"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_candidate_whose_users_leave_without_an_answer_or_still_wait_is_rolled_back(site, what, share) -> None:
    site.policy |= LONGER
    setattr(site, what, share)
    assert site.steps(20, 50, 100) == ["NO_GO"]
    assert site.weights() == {"blue": 10_000}
    judgement = site.record().judgement
    assert judgement is not None
    assert "slow requests hung without an answer" in judgement.summary


def test_a_candidate_whose_answers_repeat_one_word_is_rolled_back(site) -> None:
    site.garbled = True
    assert site.steps(20, 50, 100) == ["NO_GO"]
    assert "empty or cut answers" in site.record().judgement.summary  # type: ignore[union-attr]
    assert site.weights() == {"blue": 10_000}

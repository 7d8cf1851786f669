"""The store takes nothing for a while; what was found meanwhile is done once it does. The site is in memory."""

from __future__ import annotations

from functools import partial

import pytest
from simulated import Site

from llm_pipeline.canary.record import Phase

pytestmark = pytest.mark.usefixtures("fast")


def test_a_candidate_that_fails_while_the_store_is_full_is_rolled_back_for_that_once_it_has_room(tmp_path) -> None:
    site = Site(tmp_path)
    site.policy["minimum_bake_seconds"] = site.policy["maximum_bake_seconds"] = 60.0

    fails = {3: {"store_takes": False}, 5: {"faulty": True}, 10: {"store_takes": True}}
    site.at_looks({look: partial(vars(site).update, change) for look, change in fails.items()})
    judgement = site.step(20)
    assert judgement.verdict == "NO_GO"
    assert "fails request after request" in judgement.summary
    assert (site.weights(), site.record().phase, site.running) == ({"blue": 10_000}, Phase.ROLLED_BACK, {"blue"})
    assert [told.weights for told in site.told][-1] == {"blue": 10_000}


def test_a_store_that_is_full_for_a_while_ends_no_healthy_canary(tmp_path) -> None:
    site = Site(tmp_path)
    site.policy |= {"minimum_bake_seconds": 0.1, "maximum_bake_seconds": 60.0}  # ten looks at least
    changes = {2: {"store_takes": False}, 7: {"store_takes": True}}
    site.at_looks({look: partial(vars(site).update, change) for look, change in changes.items()})
    assert site.steps(20) == ["GO"]
    assert site.record().phase is Phase.PASSED
    assert site.weights() == {"blue": 8_000, "green": 2_000}

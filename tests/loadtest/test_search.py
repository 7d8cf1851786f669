from itertools import pairwise

import pytest

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import RateSearch
from llm_pipeline.loadtest.outcome import RatePoint
from llm_pipeline.loadtest.session import highest_passed, rates_to_confirm, search_highest_rate

SEARCH = RateSearch(resolution=0.1)


def point(rate: float, limit: float) -> RatePoint:
    verdict = Verdict.GO if rate <= limit else Verdict.NO_GO
    return RatePoint(rate_per_second=rate, good_fraction=1.0, verdict=verdict, window="w")


def found(limit: float, start: float = 20.0, most: float = 1000.0) -> tuple[RatePoint, ...]:
    return search_highest_rate(point(start, limit), most, SEARCH, lambda rate: point(rate, limit))


@pytest.mark.parametrize("limit", [2.0, 19.0, 20.0, 33.0, 150.0, 640.0])
def test_the_limit_is_found_within_the_resolution_and_never_above(limit):
    highest = highest_passed(found(limit))
    assert 0.9 * limit <= highest <= limit


def test_no_rate_is_tried_twice_or_above_the_most():
    rates = [p.rate_per_second for p in found(limit=1e9, most=70.0)]
    assert rates == [20.0, 40.0, 70.0]
    assert all(low < high for low, high in pairwise(rates))


def test_a_server_that_holds_nothing_ends_the_search():
    points = found(limit=0.0)
    assert highest_passed(points) is None
    assert len(points) == 5


def test_a_pass_above_a_failure_is_chance():
    points = (point(10, 10), point(20, 10), point(30, 100))
    assert highest_passed(points) == 10


def test_a_void_probe_is_no_pass():
    void = point(20, 100).model_copy(update={"verdict": Verdict.INCONCLUSIVE})
    assert highest_passed((point(10, 100), void)) == 10


@pytest.mark.parametrize(
    ("highest", "rates"),
    [(None, (20,)), (20.0, (20,)), (22.0, (20,)), (40.0, (36, 28, 20)), (80.0, (72, 56, 20))],
)
def test_what_is_confirmed_are_shares_of_the_highest_rate_and_at_last_the_target(highest, rates):
    assert rates_to_confirm(20.0, highest) == pytest.approx(rates, rel=1e-3)

"""What a million output tokens cost on a server that was load-tested, and how sure that is. Pure.

For an hour's price p and the confirmation's windows with a mean of m tokens a second the cost is 1e6 p / (3600 m). Its
interval has two sources. Windows differ: the bounds of m are Student's, at 95 % on both sides together. And the limit
lies between the rate that held and the next one that did not, which is as far above as the search was coarse
(`search.resolution`): the lower bound of the cost is that of a server that holds almost that one. Where the search
ended before a rate failed (`search.maximum_multiple`), the limit may be all that as many users as the engine holds got.
"""

from __future__ import annotations

from statistics import mean

from llm_pipeline.base.verdict import Verdict
from llm_pipeline.loadtest.outcome import LoadTestOutcome, TokenCost, deciding_windows, try_of
from llm_pipeline.statistics.intervals import bounds_of_mean

_ONE_SIDED = 0.975


def token_cost(outcome: LoadTestOutcome, hour_price: float | None, currency: str) -> TokenCost | None:
    """The cost at the rate that was confirmed; None without a price, or where none was."""
    paces = [window.output_tokens_per_second for window in deciding_windows(outcome)]
    if hour_price is None or outcome.confirmed_rate_per_second is None or not min(paces, default=0.0):
        return None
    pace, low, high = bounds_of_mean(paces, _ONE_SIDED)
    price = 1e6 * hour_price / 3600
    low = max(low, pace / 2)  # a bound below nothing would say nothing either
    return TokenCost(
        estimate=price / pace, lower=price / (high * _left_open(outcome)), upper=price / low, currency=currency
    )


def _left_open(outcome: LoadTestOutcome) -> float:
    """The lowest rate that did not hold, by the highest that did; where none failed, what the engine's users got."""
    held = mean(window.offered_per_second or 0.0 for window in deciding_windows(outcome))
    tried: dict[str, list[float]] = {}
    for window in outcome.windows:
        if window.phase == "confirmation":
            tried.setdefault(try_of(window), []).append(window.offered_per_second or 0.0)
    if held and len(tried) > 1:  # each is lower than the one before, and the last was confirmed
        return max(1.0, mean([*tried.values()][-2]) / held)
    highest = outcome.highest_rate_per_second
    missed = [point.rate_per_second for point in outcome.rates if point.verdict is not Verdict.GO]
    if not highest:
        return 1.0
    above = [rate for rate in missed if rate > highest]
    ceiling = (window.answered_per_second for window in outcome.windows if window.phase == "ceiling")
    return min(above) / highest if above else max(1.0, max(ceiling, default=0.0) / highest)

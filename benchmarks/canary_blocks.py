"""The package's test of latencies, with its allowance for servers that waver, on many simulated canaries at once.

The formulas are those of `eprocess`, `spread` and `metric_tests`, block by block; `cross_check` asks the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from canary_allowance import independence, information
from canary_noise import BLOCK_SECONDS, Server
from canary_ours import Analysis, gained_by_odds
from canary_peers import first_look
from canary_traffic import Counts, Numbers

from llm_pipeline.canary.analysis import begin_step, observe
from llm_pipeline.canary.arm_counts import ArmCounts, ArmEvents, MetricCounts, Window
from llm_pipeline.canary.evidence import regression_limit
from llm_pipeline.canary.metric_tests import MOST_A_BLOCK
from llm_pipeline.statistics.spread import Spread

_LARGEST_EXPONENT = 600.0
_METRIC = "slow end to end"


@dataclass(frozen=True)
class Blocks:
    """The analysis by blocks of time; with `allowance` off, as if every request were a witness of its own."""

    analysis: Analysis
    allowance: bool = True
    learned_every: int = 12

    def roll_backs(self, before: Server, candidate: Server, stable: Server) -> Counts:
        """The block at which each run is rolled back; 0 for never."""
        metric = next(metric for metric in self.analysis.begun.metrics if metric.name == _METRIC)
        test, values = metric.limits[0].regressed, np.zeros(candidate.requests.shape)
        ratios = np.array([*test.alternatives, test.ratio])
        for at in range(len(metric.limits)):
            counts = np.stack([candidate.slow[..., at], stable.slow[..., at], candidate.requests, stable.requests])
            flat = counts.reshape(4, -1).astype(np.float64)
            told = (flat[2] > 0) & (flat[3] > 0)
            logs = np.zeros((flat.shape[1], len(ratios)))
            logs[told] = gained_by_odds(ratios, flat[:, told])
            gained = (logs[:, :-1] - logs[:, -1:]).reshape(*candidate.requests.shape, -1)
            counted: Numbers | float = 1.0
            if self.allowance:
                gained = np.minimum(gained, MOST_A_BLOCK)
                counted = self._independence(before, candidate, stable, at)[..., None]
            exponents = np.minimum(counted * gained.cumsum(axis=1), _LARGEST_EXPONENT)
            values += np.exp(exponents).mean(axis=2) / len(metric.limits)
        return first_look(values >= regression_limit(metric, self.analysis.policy))

    def _independence(self, before: Server, candidate: Server, stable: Server, at: int) -> Numbers:
        events = candidate.slow[..., at], stable.slow[..., at]
        requests = candidate.requests, stable.requests
        seen = np.concatenate([before.requests, stable.requests], axis=1)
        slow = np.concatenate([before.slow[..., at], stable.slow[..., at]], axis=1)
        told = information(events, requests)
        return independence(told, requests, (seen, slow), learned_every=self.learned_every)

    def cross_check(self, before: Server, candidate: Server, stable: Server, run: int) -> int:
        """The block at which the package's own analysis rolls one run back; 0 for never."""
        begun = self.analysis.begun
        at = next(number for number, metric in enumerate(begun.metrics) if metric.name == _METRIC)
        spread = Spread.start(before.slow.shape[2])
        for units, events in zip(before.requests[run], before.slow[run], strict=True):
            spread = spread.observe(int(units), tuple(map(int, events)))
        metric = begun.metrics[at].model_copy(update={"spread": spread})
        state = begin_step(begun.model_copy(update={"metrics": (metric,)}), 0.5)
        for number in range(candidate.requests.shape[1]):
            arms = (
                ArmEvents(units=int(arm.requests[run, number]), events=tuple(map(int, arm.slow[run, number])))
                for arm in (candidate, stable)
            )
            mine, theirs = arms
            state = observe(
                state,
                Window(
                    candidate=ArmCounts(), stable=ArmCounts(), trailing_faults=0, all_faults=False,
                    candidate_units=0, stable_units=0,
                    counts=(MetricCounts(name=_METRIC, stratum="0", candidate=mine, stable=theirs),),
                    began=1.0 + number * BLOCK_SECONDS, until=1.0 + (number + 1) * BLOCK_SECONDS,
                ),
            )  # fmt: skip
            if state.metrics[0].largest >= regression_limit(metric, self.analysis.policy):
                return number + 1
        return 0

"""The windows that the verdict comes from: a rate held for longer, on fresh seeds, extended while undecided.

A rate above the target that is not confirmed is lowered towards the target, which is tried last. Every try and every
extension is a look at data that may say GO by chance, so all of them share the error that the policy allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count

import numpy as np

from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.loadtest.floor import FloorTimes
from llm_pipeline.loadtest.gate import judge_windows
from llm_pipeline.loadtest.outcome import ServerUse
from llm_pipeline.loadtest.physics import PhysicalLimits
from llm_pipeline.loadtest.records import Records
from llm_pipeline.loadtest.sample_size import MOST_RATES, looks_at_most
from llm_pipeline.loadtest.windows import Windows

_log = get_logger(__name__)


@dataclass(frozen=True)
class Decision:
    """What was decided, and at which rate; no rate when none was confirmed."""

    judgement: Judgement
    rate_per_second: float | None = None


@dataclass(frozen=True)
class Limits:
    """What no answer can beat: the server alone, and its hardware."""

    floor: FloorTimes
    physics: PhysicalLimits | None = None


def confirm(windows: Windows, highest: float | None, limits: Limits) -> Decision:
    """Confirm a share of the highest rate, or less, but never less than the target.

    Args:
        windows: What measures.
        highest: The highest rate that passed its probe; None when none did, or none was looked for.
        limits: What no answer can beat.
    """
    rates = rates_to_confirm(windows.workload.rate_per_second, highest, windows.policy.confirmed_share)
    for place, rate in enumerate(rates):
        judgement = _hold(windows, place, rate, limits)
        if judgement.verdict in (Verdict.GO, Verdict.ANOMALOUS) or place == len(rates) - 1:
            break
        _log.info("not confirmed, a lower rate is tried", per_second=round(rate, 3), verdict=str(judgement.verdict))
    return Decision(judgement, rate if judgement.verdict is Verdict.GO else None)


def rates_to_confirm(target: float, highest: float | None, share: float) -> tuple[float, ...]:
    """Rates from the share of the highest one down to the target, equal factors apart; the target is the last."""
    first = share * (highest or 0.0)
    return tuple(np.geomspace(first, target, MOST_RATES).tolist()) if first > target else (target,)


def _hold(windows: Windows, place: int, rate: float, limits: Limits) -> Judgement:
    policy, held, servers = windows.policy, list[Records](), list[ServerUse]()
    looks, extensions = looks_at_most(policy), math.floor(policy.maximum_extension)
    numbers = count(1)
    seconds = windows.workload.duration_seconds * policy.confirmation_multiple / policy.seeds
    for look in range(1, extensions + 1):
        for _ in range(policy.seeds):
            name = f"confirmation-{place + 1}-{next(numbers)}"  # `deciding.py` reads which rate it was of
            records = windows.open(name, "confirmation", rate, seconds, keep=True)
            if windows.summaries[-1].void and held:
                continue  # measured twice, and both times the client was late: the other windows may do
            held.append(records)
            servers.append(windows.summaries[-1].server)
        judgement = judge_windows(
            held, policy, look=look, looks=looks, floor=limits.floor, physics=limits.physics, servers=servers
        )
        if judgement.verdict is not Verdict.INCONCLUSIVE:
            break
        _log.info("undecided", per_second=round(rate, 3), windows=len(held), because=judgement.summary)
    return judgement

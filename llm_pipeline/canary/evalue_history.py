"""The e-values of a canary, look by look: few enough to be stored with its record, for the whole of its time."""

from __future__ import annotations

from collections.abc import Sequence

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.analysis import AnalysisState

MOST_LOOKS = 120
"""A record keeps so many, spread over the canary's time; more cannot be told apart in a plot."""

LARGEST = 1e12
"""Evidence beyond this says no more, and is no longer than other numbers in a document."""


class Look(Frozen):
    """All e-values at one look.

    Attributes:
        at: Seconds since 1970; in a timeline, since the canary began.
        percent: The step in force.
        regressed: By metric, in the order of the analysis: that the candidate is worse than tolerated.
        parity: The same: that it is no worse.
        split: That the router does not split the traffic as it was told, since the step began.
    """

    at: float
    percent: float
    regressed: tuple[float, ...]
    parity: tuple[float, ...]
    split: float


def with_look(looks: Sequence[Look], state: AnalysisState, *, at: float, percent: float) -> tuple[Look, ...]:
    """The looks and the newest, at most `MOST_LOOKS` of them; the first, the newest and each step's last one stay.

    The newest takes the place of the one before as long as that is near to its own predecessor in the same step.
    """
    kept = list(looks)
    newest = Look(
        at=at,
        percent=percent,
        regressed=tuple(_short(metric.value) for metric in state.metrics),
        parity=tuple(_short(metric.parity.largest) for metric in state.metrics),
        split=_short(state.step.split.value) if state.step else 1.0,
    )
    if len(kept) > 1 and kept[-2].percent == kept[-1].percent == percent:
        nearest = 2.0 * (at - kept[0].at) / MOST_LOOKS
        if kept[-1].at - kept[-2].at < nearest:
            kept.pop()
    kept.append(newest)
    return tuple(_thinned(kept) if len(kept) > MOST_LOOKS else kept)


def _thinned(looks: list[Look]) -> list[Look]:
    """Every second one, and the last of every step."""
    following = [*looks[1:], None]
    return [
        look
        for number, (look, after) in enumerate(zip(looks, following, strict=True))
        if number % 2 == 0 or after is None or after.percent != look.percent
    ]


def _short(value: float) -> float:
    """Three digits."""
    return float(f"{min(value, LARGEST):.3g}")

"""How much one server varies by itself, learned from stable in blocks of time. Pure.

Latencies of one server are alike from second to second: its batches, its caches, its neighbours on the host. Two equal
servers differ then for minutes, and thousands of requests only measure that difference more precisely: they are no
thousands of witnesses. What tells chance from a regression is how much the share of slow requests wavers on the scale
of the whole comparison, and stable shows that by itself: by its blocks of time before the first step, and since.

For segments of 1, 2, 4, ... blocks with `n_i` requests and `e_i` events, of a share `p` over all of them, the variance
of a segment's log odds, beyond what chance alone makes of `n_i` requests, is by the method of moments

    s^2 = (sum (e_i - n_i p)^2 - sum n_i p (1 - p)) / sum (n_i p (1 - p))^2

With few segments the first sum is replaced by its upper confidence limit (0.75, of the chi-squared distribution), so
that a short history makes cautious, and only scales with eight segments or more are used.

Assumed, and no data of a canary can show it: the candidate wavers as much as stable does, by itself; and beyond the
longest scale that was seen (an eighth of the history, which grows as the canary goes on) no server wavers more.
Both arms together waver with twice that variance, `V` being the Fisher information of the counts: the evidence of
`V` is worth `V / (1 + 2 V s^2)`, and the logarithms of e-values are multiplied by `1 / (1 + 2 V s^2)`. For normal noise
that lasts, this is the likelihood ratio of the model with a random effect of each server; see benchmarks/canary.py for
what it holds under other noise.

Sources: McCullagh and Nelder, "Generalized Linear Models", 1989, ch. 4.5 (overdispersion); Kish, "Survey Sampling",
1965 (design effect, effective sample size); Wilson and Hilferty, PNAS 17, 1931, for the chi-squared quantile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from llm_pipeline.base.records import Frozen

BLOCK_SECONDS = 10.0
"""The unit of evidence on latencies: long enough for the stall of a garbage collection or a compaction."""

SCALES = tuple(2**number for number in range(10))
"""Lengths of segments, in blocks: 10 s to an hour and a half."""

FEWEST_SEGMENTS = 8
"""A scale with fewer says nothing."""

_CAUTION = -0.6745
"""The standard normal quantile of 0.25."""


class Scale(Frozen):
    """Sums over the segments of one length; events by limit.

    Attributes:
        blocks: How many blocks a segment has.
        segments: Those that are complete.
        units: Sum of all segments' units.
        squares: Sum of their squares.
        events: Sum of all segments' events.
        crossed: Sum of units times events.
        event_squares: Sum of the squares of events.
        open_blocks: How much of the next segment is there.
        open_units: Its units so far.
        open_events: Its events so far.
    """

    blocks: Annotated[int, Field(ge=1)]
    segments: int = 0
    units: int = 0
    squares: int = 0
    events: tuple[int, ...]
    crossed: tuple[int, ...]
    event_squares: tuple[int, ...]
    open_blocks: int = 0
    open_units: int = 0
    open_events: tuple[int, ...]

    @classmethod
    def start(cls, blocks: int, limits: int) -> Scale:
        """No segments yet."""
        none = (0,) * limits
        return cls(blocks=blocks, events=none, crossed=none, event_squares=none, open_events=none)

    def observe(self, units: int, events: Sequence[int], blocks: int) -> Scale:
        """The sums after so many more blocks together; a segment that is complete joins them."""
        units += self.open_units
        events = [before + new for before, new in zip(self.open_events, events, strict=True)]
        if self.open_blocks + blocks < self.blocks:
            opened = {"open_blocks": self.open_blocks + blocks, "open_units": units, "open_events": tuple(events)}
            return self.model_copy(update=opened)
        closed = {
            "segments": self.segments + 1,
            "units": self.units + units,
            "squares": self.squares + units * units,
            "events": tuple(map(sum, zip(self.events, events, strict=True))),
            "crossed": tuple(old + units * new for old, new in zip(self.crossed, events, strict=True)),
            "event_squares": tuple(old + new * new for old, new in zip(self.event_squares, events, strict=True)),
        }
        return Scale.start(self.blocks, len(events)).model_copy(update=closed)

    def variance(self, limit: int, *, cautious: bool) -> float:
        """Of a segment's log odds beyond chance, at one limit; 0 where all or no requests have events."""
        share = self.events[limit] / self.units if self.units else 0.0
        odds = share * (1.0 - share)
        if odds == 0.0:
            return 0.0
        spread = self.event_squares[limit] - 2.0 * share * self.crossed[limit] + share**2 * self.squares
        upper = spread * self.segments / (_chi_squared_low(self.segments - 1) if cautious else self.segments - 1)
        return max(0.0, (upper - odds * self.units) / (odds**2 * self.squares))


class Spread(Frozen):
    """How the event shares of one metric waver at one server, on all scales."""

    scales: tuple[Scale, ...]

    @classmethod
    def start(cls, limits: int) -> Spread:
        """Nothing is known of any of so many limits."""
        return cls(scales=tuple(Scale.start(blocks, limits) for blocks in SCALES))

    def observe(self, units: int, events: Sequence[int], blocks: int = 1) -> Spread:
        """What is known after one more block of time, or after several that cannot be told apart."""
        return Spread(
            scales=tuple(
                scale if blocks > scale.blocks else scale.observe(units, events, blocks) for scale in self.scales
            )
        )

    def variance(self, limit: int, blocks: float, *, cautious: bool) -> float:
        """Of the log odds of one server over so many blocks of time, beyond chance; 0 while nothing is known."""
        known = [scale for scale in self.scales if scale.segments >= FEWEST_SEGMENTS]
        fitting = [scale for scale in known if scale.blocks <= blocks] or known[:1]
        return fitting[-1].variance(limit, cautious=cautious) if fitting else 0.0


class Pace(Frozen):
    """The length of a comparison, by when its evidence arrived.

    Attributes:
        weight: Sum of the blocks' weights: how many requests each arm would have, had both as many.
        squares: Sum of their squares, each by its length in blocks.
        candidate: Units of the block that has begun.
        stable: The same of stable.
        events: Stable's events in it, by limit.
        began: When it began, seconds since 1970; None before the first.
    """

    weight: float = 0.0
    squares: float = 0.0
    candidate: int = 0
    stable: int = 0
    events: tuple[int, ...] = ()
    began: float | None = None

    @property
    def blocks(self) -> float:
        """Kish's effective number of them: a step at 1 % beside one at 50 % counts for little."""
        weight, squares = self._with_open(1.0)
        return weight**2 / squares if squares else 0.0

    def observe(self, candidate: int, stable: int, events: Iterable[int], began: float) -> Pace:
        """The comparison after one more look, which began at this time."""
        new = tuple(events)
        return self.model_copy(
            update={
                "candidate": self.candidate + candidate,
                "stable": self.stable + stable,
                "events": tuple(map(sum, zip(self.events, new, strict=True))) if self.events else new,
                "began": began if self.began is None and began else self.began,
            }
        )

    def length(self, until: float, block_seconds: float) -> int:
        """How many blocks the open one has by now: 0 while it is not complete."""
        if self.began is None or until < self.began:
            return 0
        return math.floor((until - self.began) / block_seconds + 1e-9)

    def set_back(self, until: float) -> Pace:
        """The comparison after a look until then: the open block goes on from there if the clock was set back."""
        ahead = self.began is not None and 0.0 < until < self.began
        return self.model_copy(update={"began": until}) if ahead else self

    def closed(self, blocks: int, block_seconds: float) -> Pace:
        """The comparison after the open block, so long, is complete."""
        weight, squares = self._with_open(float(blocks))
        began = None if self.began is None else self.began + blocks * block_seconds
        return Pace(weight=weight, squares=squares, began=began)

    def _with_open(self, blocks: float) -> tuple[float, float]:
        both = self.candidate + self.stable
        weight = self.candidate * self.stable / both if both else 0.0
        return self.weight + weight, self.squares + weight**2 / blocks


def independence(information: float, variance: float) -> float:
    """What a request's evidence counts: 1 where a server does not waver, less the more is known of both arms."""
    return 1.0 / (1.0 + 2.0 * information * variance)


def _chi_squared_low(degrees: int) -> float:
    """The 0.25 quantile."""
    part = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - part + _CAUTION * math.sqrt(part)) ** 3

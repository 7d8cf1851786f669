"""How much one server's share of slow requests varies beyond chance, learned from stable. Pure.

Latencies of one server are alike from second to second: its batches, its caches, its neighbours on the host. Two equal
servers differ then for minutes, and thousands of requests only measure that difference more precisely. So segments of
stable's time with `n_i` requests and `e_i` events, of a share `p` over all of them, tell the variance of one segment's
log odds beyond what chance alone makes of `n_i` requests, by the method of moments:

    s^2 = (k / (k - 1) sum (e_i - n_i p)^2 - sum n_i p (1 - p)) / sum (n_i p (1 - p))^2

Segments are the longest, up to five minutes, of which stable's history has eight. What wavers faster is averaged away
in them; what wavers more slowly than the whole history cannot be seen by anybody.

Sources: McCullagh and Nelder, "Generalized Linear Models", 1989, ch. 4.5 (overdispersion).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from llm_pipeline.base.records import Frozen

SEGMENT_BLOCKS = (30, 18, 12, 6, 3, 1)
FEWEST_SEGMENTS = 8


class Variation(Frozen):
    """Sums over stable's segments; events by limit.

    Attributes:
        blocks: How many blocks of time a segment has.
        segments: Those that are complete.
        requests: Of all segments.
        squares: Sum of the squares of their requests.
        events: Of all segments.
        crossed: Sum of requests times events.
        event_squares: Sum of the squares of events.
        open: Blocks, requests and events of the segment that has begun.
    """

    blocks: int
    segments: int = 0
    requests: int = 0
    squares: int = 0
    events: tuple[int, ...]
    crossed: tuple[int, ...]
    event_squares: tuple[int, ...]
    open: tuple[int, int, tuple[int, ...]]

    @classmethod
    def learned(cls, history: Sequence[tuple[int, tuple[int, ...]]], limits: int) -> Self:
        """From the requests and events of stable's blocks of time, oldest first."""
        fitting = (blocks for blocks in SEGMENT_BLOCKS if len(history) >= FEWEST_SEGMENTS * blocks)
        none = (0,) * limits
        found = cls(blocks=next(fitting, 1), events=none, crossed=none, event_squares=none, open=(0, 0, none))
        for requests, events in history:
            found = found.observe(requests, events)
        return found

    def observe(self, requests: int, events: Sequence[int]) -> Self:
        """The sums after one more block of time."""
        blocks, before, events_before = self.open
        blocks, n = blocks + 1, before + requests
        e = tuple(a + b for a, b in zip(events_before, events, strict=True))
        if blocks < self.blocks or not n:
            return self.model_copy(update={"open": (blocks, n, e)})
        return self.model_copy(
            update={
                "segments": self.segments + 1,
                "requests": self.requests + n,
                "squares": self.squares + n * n,
                "events": tuple(a + b for a, b in zip(self.events, e, strict=True)),
                "crossed": tuple(a + n * b for a, b in zip(self.crossed, e, strict=True)),
                "event_squares": tuple(a + b * b for a, b in zip(self.event_squares, e, strict=True)),
                "open": (0, 0, (0,) * len(e)),
            }
        )

    def variances(self) -> list[float]:
        """Of one server's log odds, beyond chance, at each limit; 0 while nothing is known."""
        return [self._variance(limit) for limit in range(len(self.events))]

    def _variance(self, limit: int) -> float:
        share = self.events[limit] / self.requests if self.requests else 0.0
        odds = share * (1.0 - share)
        if odds == 0.0 or self.segments < 2:  # noqa: PLR2004 - a variance needs two
            return 0.0
        spread = self.event_squares[limit] - 2.0 * share * self.crossed[limit] + share**2 * self.squares
        beyond = spread * self.segments / (self.segments - 1) - odds * self.requests
        return max(0.0, beyond / (odds**2 * self.squares))

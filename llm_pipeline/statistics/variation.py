"""How much one server's share of slow requests varies from one time to another, learned from stable. Pure.

Latencies of one server are alike from second to second: its batches, its caches, its neighbours on the host. Two equal
servers differ then for minutes, and thousands of requests only measure that difference more precisely. So stable's time
is cut into segments, and the variance of their log odds

    y_i = log (e_i + 1/2) / (n_i - e_i + 1/2)

for `e_i` slow ones of `n_i` requests tells what the next segment of an equal server may be. Half a request on both
sides keeps a segment without any, and one with a single burst, from counting for more than they are. Chance is part of
the variance, and small in segments with many requests.

Segments are the longest, up to five minutes, of which stable's history has eight. What wavers faster is averaged away
in them; what wavers more slowly than the whole history cannot be seen by anybody.

Sources: Haldane, "The estimation and significance of the logarithm of a ratio of frequencies", 1956.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from llm_pipeline.base.records import Frozen

SEGMENT_BLOCKS = (30, 18, 12, 6, 3, 1)
FEWEST_SEGMENTS = 8


class Variation(Frozen):
    """Sums over stable's segments, by limit.

    Attributes:
        blocks: How many blocks of time a segment has.
        segments: Those that are complete.
        sums: Of their log odds.
        squares: Of the squares of those.
        open: Blocks, requests and events of the segment that has begun.
    """

    blocks: int
    segments: int = 0
    sums: tuple[float, ...]
    squares: tuple[float, ...]
    open: tuple[int, int, tuple[int, ...]]

    @classmethod
    def learned(cls, history: Sequence[tuple[int, tuple[int, ...]]], limits: int) -> Self:
        """From the requests and events of stable's blocks of time, oldest first."""
        fitting = (blocks for blocks in SEGMENT_BLOCKS if len(history) >= FEWEST_SEGMENTS * blocks)
        none = (0.0,) * limits
        found = cls(blocks=next(fitting, 1), sums=none, squares=none, open=(0, 0, (0,) * limits))
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
        odds = [math.log((slow + 0.5) / (n - slow + 0.5)) for slow in e]
        return self.model_copy(
            update={
                "segments": self.segments + 1,
                "sums": tuple(a + y for a, y in zip(self.sums, odds, strict=True)),
                "squares": tuple(a + y * y for a, y in zip(self.squares, odds, strict=True)),
                "open": (0, 0, (0,) * len(e)),
            }
        )

    def variances(self) -> list[float]:
        """Of one server's log odds at each limit; 0 while nothing is known."""
        k = self.segments
        if k < 2:  # noqa: PLR2004 - a variance needs two
            return [0.0] * len(self.sums)
        both = zip(self.sums, self.squares, strict=True)
        return [max(0.0, (squares - total**2 / k) / (k - 1)) for total, squares in both]

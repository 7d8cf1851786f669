"""Rare kinds of requests, told by what is known before the answer: a fault of one of them is lost among all others.

A candidate that fails a tenth of the 2 % of its requests that are streamed fails 0.2 % of them all. So each kind that
is half of stable's requests at most, and of which there are enough, has tests of errors and of the time to the last
byte of its own, with limits of its own, within the same `alpha`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from llm_pipeline.canary.observations import ObservedRequest

STREAMED, WHOLE, LONG = "streamed answers", "whole answers", "the longest tenth of prompts"

_MOST_SHARE = 0.5
"""A kind of more requests than that is seen among all."""


def kinds_of(request: ObservedRequest, long_bytes: int | None) -> tuple[str, ...]:
    """The kinds of a request."""
    streamed = STREAMED if request.streaming else WHOLE
    is_long = long_bytes is not None and request.request_bytes > long_bytes
    return (streamed, LONG) if is_long else (streamed,)


def rare_kinds(kinds: Iterable[tuple[str, ...]], enough: float) -> tuple[str, ...]:
    """The kinds that have tests of their own: of half of the requests at most, and of so many at least."""
    all_kinds = list(kinds)
    counted = Counter(kind for found in all_kinds for kind in found)
    return tuple(kind for kind in (STREAMED, WHOLE, LONG) if enough <= counted[kind] <= _MOST_SHARE * len(all_kinds))

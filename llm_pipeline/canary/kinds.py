"""Rare kinds of requests, by what is known before the answer: their faults would be lost among all others.

A candidate that fails a tenth of the 2 % of its requests that are streamed fails 0.2 % of them all. So each kind that
is half of stable's requests at most, and of which there are enough, has tests of errors and of the time to the last
byte of its own, with limits of its own, within the same `alpha`.
"""

from __future__ import annotations

from collections.abc import Iterable

from llm_pipeline.canary.observations import ObservedRequest

STREAMED, WHOLE, LONG = "streamed answers", "whole answers", "the longest tenth of prompts"
_ROUTE = "requests to "

_MOST_SHARE = 0.5
"""A kind of more requests than that is seen among all."""


def kinds_of(request: ObservedRequest, long_bytes: int | None) -> tuple[str, ...]:
    """The kinds of a request."""
    streamed = STREAMED if request.streaming else WHOLE
    is_long = long_bytes is not None and request.request_bytes > long_bytes
    route = f"{_ROUTE}{request.route}"
    return (streamed, *([LONG] if is_long else []), *([route] if request.route else []))


def rare_kinds(kinds: Iterable[tuple[str, ...]], enough: float) -> tuple[str, ...]:
    """The kinds that have tests of their own: of half of the requests at most, and of so many at least.

    Where all of two kinds' requests are the same, as of streams and the only route that streams, the first counts.
    """
    members: dict[str, set[int]] = {STREAMED: set(), WHOLE: set(), LONG: set()}
    total = 0
    for total, found in enumerate(kinds, start=1):
        for kind in found:
            members.setdefault(kind, set()).add(total)
    order = [STREAMED, WHOLE, LONG, *sorted(members.keys() - {STREAMED, WHOLE, LONG})]
    chosen: dict[str, set[int]] = {}
    for kind in order:
        if enough <= len(members[kind]) <= _MOST_SHARE * total and members[kind] not in chosen.values():
            chosen[kind] = members[kind]
    return tuple(chosen)

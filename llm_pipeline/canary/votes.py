"""Refusals, one vote a user: whether the first request of each that ended in an arm was refused.

A server that refuses a request is mostly right: the request is bad, and whoever sends bad ones sends many of them.
What tells a candidate that refuses too much from a user who asks badly is how many users are refused. So a session,
or a client where there are no sessions, has one vote in each arm and step: its first request there. Requests of which
the router tells neither have none. What is remembered is bounded: one bit a voter; two that share a bit have one vote.
"""

from __future__ import annotations

from collections.abc import Iterable

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.metric_events import Unit, client_of, group_of
from llm_pipeline.canary.observations import ObservedRequest

_BITS = 2**15


class Vote(Frozen):
    """What a user's request says of its arm.

    Attributes:
        voter: Fingerprint of the session, or of the client; hexadecimal.
        group: That of the client, who may have many sessions; no group decides alone (see `sums`).
        refused: It was refused, by every server that was asked.
    """

    voter: str
    on_trial: bool
    refused: bool
    group: str = ""


class Voters(Frozen):
    """Who voted at this step, a bit for each voter and arm; hexadecimal."""

    voted: str = ""

    def observe(self, votes: Iterable[Vote]) -> tuple[Voters, tuple[Unit, ...]]:
        """Who has voted after more requests, and the votes that count, as units."""
        votes = list(votes)
        if not votes:
            return self, ()
        bits, units = bytearray.fromhex(self.voted) or bytearray(_BITS // 8), []
        for vote in votes:
            number = (2 * int(vote.voter, 16) + vote.on_trial) % _BITS
            mask = 1 << number % 8
            if not bits[number // 8] & mask:
                bits[number // 8] |= mask
                units.append(Unit(on_trial=vote.on_trial, group=vote.group, error=None, refused=vote.refused))
        return Voters(voted=bits.hex()), tuple(units)


def vote_of(request: ObservedRequest, *, on_trial: bool) -> Vote | None:
    """A request's vote; None if it has not ended, its user left, or its user is unknown."""
    voter = request.session or request.client
    if voter is None or request.in_flight or request.cancelled:
        return None
    group = group_of(client_of(request))
    return Vote(voter=voter, on_trial=on_trial, refused=request.refused, group=group)

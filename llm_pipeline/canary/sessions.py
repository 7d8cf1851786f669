"""What counts once per step, however much a user sends: sessions as units, and one vote per user on refusals.

Requests of one session are correlated, and a sticky session stays in one arm, so counting its requests one by one rolls
good candidates back. A session is observed for some seconds from its first request of the step, then counts once; its
later requests are left out. Memory is bounded: the sessions observed now, up to `MOST_OBSERVED`, and one bit for each
that was counted. Two sessions that share a bit count as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.metric_events import Unit, client_of, group_of, joined
from llm_pipeline.canary.observations import ObservedRequest

_SESSION_BITS, _VOTER_BITS = 2**17, 2**15

MOST_OBSERVED = 1000
"""How many sessions are observed at a time; later ones are left out, in both arms alike."""


class SessionRequest(Frozen):
    """A request of a session, as a unit.

    Attributes:
        session: Fingerprint of the session's name, hexadecimal.
        started_at: Seconds since 1970.
    """

    session: str
    started_at: float
    unit: Unit


class Sessions(Frozen):
    """What is remembered of a step's sessions.

    Attributes:
        observed: Those that have not counted yet; `started_at` is their first request's.
        counted: One bit for each that counted, hexadecimal.
    """

    observed: dict[str, SessionRequest] = Field(default_factory=dict)
    counted: str = ""

    def observe(
        self, requests: Iterable[SessionRequest], until: float, seconds: float
    ) -> tuple[Sessions, tuple[Unit, ...]]:
        """The sessions after more requests, and the units of those whose observation ended by `until`."""
        requests = list(requests)
        if not (requests or self.observed):
            return self, ()
        counted, observed = bytearray.fromhex(self.counted) or bytearray(_SESSION_BITS // 8), dict(self.observed)
        for request in requests:
            byte, mask = _bit(request.session)
            if request.session in observed or (len(observed) < MOST_OBSERVED and not counted[byte] & mask):
                _observe(observed, request, seconds)
        over = [one for one in observed.values() if one.started_at + seconds <= until]
        for one in over:
            del observed[one.session]
            byte, mask = _bit(one.session)
            counted[byte] |= mask
        return Sessions(observed=observed, counted=counted.hex()), tuple(one.unit for one in over)


def by_session(requests: Iterable[ObservedRequest], units: Iterable[Unit], seconds: float) -> list[Unit]:
    """Units joined by session, as they would be observed; requests without a session stay single."""
    alone: list[Unit] = []
    observed: dict[str, SessionRequest] = {}
    for request, unit in sorted(zip(requests, units, strict=True), key=lambda pair: pair[0].started_at):
        if request.session is None:
            alone.append(unit)
        else:
            one = SessionRequest(session=request.session, started_at=request.started_at, unit=unit)
            _observe(observed, one, seconds)
    return [*alone, *(one.unit for one in observed.values())]


def _observe(observed: dict[str, SessionRequest], request: SessionRequest, seconds: float) -> None:
    """A session begins with its first request; those of its first `seconds` are one unit with it."""
    first = observed.setdefault(request.session, request)
    if first is not request and request.started_at < first.started_at + seconds:
        observed[request.session] = first.model_copy(update={"unit": joined(first.unit, request.unit)})


class Vote(Frozen):
    """What a user's request says of its arm.

    Attributes:
        voter: Fingerprint of the session, or of the client; hexadecimal.
        group: The group of the client, who may have many sessions; no group decides alone.
        refused: Every server that was asked refused the request.
    """

    voter: str
    on_trial: bool
    refused: bool
    group: str = ""


class Voters(Frozen):
    """Who voted on refusals at this step, a bit for each voter and arm; hexadecimal.

    A refusal is mostly right: the request is bad, and users who send bad requests send many. The number of refused
    users, not of requests, shows a candidate that refuses too much. So each session (each client, without sessions) has
    one vote per arm and step: its first request there. Requests without a known session or client have none. Two voters
    that share a bit have one vote.
    """

    voted: str = ""

    def observe(self, votes: Iterable[Vote]) -> tuple[Voters, tuple[Unit, ...]]:
        """Who has voted after more requests, and the votes that count, as units."""
        votes = list(votes)
        if not votes:
            return self, ()
        bits, units = bytearray.fromhex(self.voted) or bytearray(_VOTER_BITS // 8), []
        for vote in votes:
            number = (2 * int(vote.voter, 16) + vote.on_trial) % _VOTER_BITS
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


def _bit(session: str) -> tuple[int, int]:
    """The byte and the mask of a session's bit."""
    number = int(session, 16) % _SESSION_BITS
    return number // 8, 1 << number % 8

"""Sessions as the unit of a canary: each counts once a step, with what its requests showed while it was observed.

Requests of one session are alike, so when a session stays in one arm its requests are no independent evidence: counted
one by one, they roll good candidates back. A session is observed for some seconds from its first request of the step
and counts when they are over; later requests of it are left out. What must be remembered is bounded: the sessions
that are observed now, up to `MOST_OBSERVED`, and one bit for each that was counted. Two sessions that share a bit count
as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.metric_events import Unit, joined
from llm_pipeline.canary.observations import ObservedRequest

_BITS = 2**17

MOST_OBSERVED = 1000
"""So many sessions are observed at a time; of more, those that come later are left out, in both arms alike."""


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
        counted, observed = bytearray.fromhex(self.counted) or bytearray(_BITS // 8), dict(self.observed)
        for request in requests:
            first = observed.get(request.session)
            if first is None and len(observed) < MOST_OBSERVED and not _is_set(counted, request.session):
                observed[request.session] = request
            elif first is not None and request.started_at < first.started_at + seconds:
                observed[request.session] = first.model_copy(update={"unit": joined(first.unit, request.unit)})
        over = [one for one in observed.values() if one.started_at + seconds <= until]
        for one in over:
            del observed[one.session]
            _set(counted, one.session)
        return Sessions(observed=observed, counted=counted.hex()), tuple(one.unit for one in over)


def by_session(requests: Iterable[ObservedRequest], units: Iterable[Unit], seconds: float) -> list[Unit]:
    """Units of whole sessions, as they would be observed; those of requests without a session as they are."""
    alone: list[Unit] = []
    found: list[SessionRequest] = []
    for request, unit in zip(requests, units, strict=True):
        if request.session is None:
            alone.append(unit)
        else:
            found.append(SessionRequest(session=request.session, started_at=request.started_at, unit=unit))
    found.sort(key=lambda request: request.started_at)
    return [*alone, *Sessions().observe(found, float("inf"), seconds)[1]]


def _bit(session: str) -> tuple[int, int]:
    number = int(session, 16) % _BITS
    return number // 8, 1 << number % 8


def _is_set(bits: bytearray, session: str) -> bool:
    byte, mask = _bit(session)
    return bool(bits[byte] & mask)


def _set(bits: bytearray, session: str) -> None:
    byte, mask = _bit(session)
    bits[byte] |= mask

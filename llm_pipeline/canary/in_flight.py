"""Requests in flight: each counts from its start, and is judged by its age while it lasts.

A log of requests that ended knows nothing of one that hangs. The router notes those in flight once a second, so a
request may be seen several times; it counts once, at its first sight, and each of its times is judged once: when it
ended, or when it is already so long that waiting for its end would help nobody. What is remembered is bounded.

Whoever leaves an answer says how long it had not come (a censored time). That is judged where it exceeds stable's first
limit; a shorter one says nothing. Users do not know in which arm they are, so both arms' users are equally patient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.metric_events import MetricName
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.slow_limits import SLOW_FACTORS, Thresholds

MOST = 1024
"""So many requests in flight are remembered; of more, those seen later count when they end."""

LONGEST_WAIT_MILLISECONDS = 30_000.0
"""A request in flight for so long, and beyond stable's highest quantile, is judged: a step may be over in a minute."""

_FORGOTTEN_SECONDS = 60.0  # of the log's own time without a line of it: the router that carried it is gone


@dataclass(frozen=True)
class Sighting:
    """What a line of the log newly tells of a request.

    Attributes:
        started: It was not seen before.
        first_token: Its time to the first token is to be judged now.
        end_to_end: Its whole time is to be judged now.
    """

    request: ObservedRequest
    started: bool = True
    first_token: bool = True
    end_to_end: bool = True


class Seen(Frozen):
    """A request in flight.

    Attributes:
        at: When it was seen last, seconds since 1970.
        first_token: Its time to the first token was judged.
        end_to_end: Its whole time was judged.
    """

    at: float
    first_token: bool = False
    end_to_end: bool = False


class InFlight(Frozen):
    """The requests in flight, by their identities."""

    requests: dict[str, Seen] = Field(default_factory=dict)

    def observe(
        self, requests: Iterable[ObservedRequest], thresholds: Thresholds
    ) -> tuple[InFlight, tuple[Sighting, ...]]:
        """What is in flight after more lines of the log, and what they newly tell."""
        requests, sightings = list(requests), []
        newest = max((request.seen_at for request in requests), default=0.0)
        seen = {name: one for name, one in self.requests.items() if one.at >= newest - _FORGOTTEN_SECONDS}
        for request in requests:
            before = seen.pop(request.identity, None) if request.identity else None
            if request.in_flight and before is None and len(seen) >= MOST:
                continue
            sighting = _sighting(request, before, thresholds)
            if request.in_flight:
                judged = before or Seen(at=request.seen_at)
                seen[request.identity] = Seen(
                    at=request.seen_at,
                    first_token=judged.first_token or sighting.first_token,
                    end_to_end=judged.end_to_end or sighting.end_to_end,
                )
            sightings.append(sighting)
        return InFlight(requests=seen), tuple(sightings)


NOTHING_IN_FLIGHT = InFlight()


def _sighting(request: ObservedRequest, before: Seen | None, thresholds: Thresholds) -> Sighting:
    waits_for_first = request.first_byte_milliseconds is None
    first = before is None or not before.first_token
    total = before is None or not before.end_to_end
    return Sighting(
        request,
        started=before is None,
        first_token=first and (not waits_for_first or _judged(request, thresholds, "slow first token")),
        end_to_end=total and _judged(request, thresholds, "slow end to end"),
    )


def _judged(request: ObservedRequest, thresholds: Thresholds, name: MetricName) -> bool:
    """Whether a time is known well enough to be judged: it ended, or is beyond what may be waited for."""
    if not (request.in_flight or request.cancelled):
        return True
    limits = next((metric.limits for metric in thresholds.metrics if metric.name == name), ())
    if not limits:
        return False
    if request.cancelled:
        return request.total_milliseconds > limits[0].value
    longest = max(limit.value for limit in limits)
    highest = longest / SLOW_FACTORS[-1]  # quantile of stable's; the last limits are its multiples
    return request.total_milliseconds > max(highest, min(longest, LONGEST_WAIT_MILLISECONDS))

"""The counts of one look at live traffic: both arms' requests and failures, and the events of every metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.metric_events import MetricLimits, MetricName, Unit, beyond, client_of, unit_of, values_of
from llm_pipeline.canary.observations import ObservedRequest
from llm_pipeline.canary.router import SlotName
from llm_pipeline.canary.sessions import SessionRequest, Vote, vote_of
from llm_pipeline.canary.slow_limits import SLOW_FACTORS, Thresholds

MOST = 1024
"""How many requests in flight are remembered; further ones are counted when they end."""

LONGEST_WAIT_MILLISECONDS = 30_000.0
"""A request in flight is judged at this age if it also exceeds stable's highest quantile: steps can be this short."""

_FORGOTTEN_SECONDS = 60.0  # without a new line, by the log's own time: the router that handled the request is gone


@dataclass(frozen=True)
class Sighting:
    """What a line of the log adds to what is known of a request.

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
    """The requests in flight, by their identities: each counts from its start, and is judged by its age until it ends.

    A log of ended requests does not show one that hangs. So the router logs requests in flight once a second, and a
    request may appear several times. It counts once, when it is first seen, and each of its times is judged once: when
    it ends, or when it already exceeds every limit. The number of remembered requests is bounded.

    If the user left before the answer's end, its time is censored: it is judged only if it exceeds stable's first
    limit. Users do not know their arm, so the users of both arms are equally patient.
    """

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
    """Whether a time can be judged: the request ended, or its age already exceeds what may be waited for."""
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


class ArmCounts(Frozen):
    """One arm's requests that started in a window or step, and how those that ended did so."""

    requests: int = 0
    errors: int = 0
    faults: int = 0
    lost: int = 0

    def plus(self, other: ArmCounts) -> ArmCounts:
        """Both together."""
        return ArmCounts(
            requests=self.requests + other.requests,
            errors=self.errors + other.errors,
            faults=self.faults + other.faults,
            lost=self.lost + other.lost,
        )


class ArmEvents(Frozen):
    """How many units of one arm have a value of a metric, and how many exceed each of its limits."""

    units: int
    events: tuple[int, ...]


class MetricCounts(Frozen):
    """One metric in one stratum of one window; of one group of clients, where clients are identified."""

    name: MetricName
    stratum: str
    candidate: ArmEvents
    stable: ArmEvents
    group: str = ""
    kind: str = ""


class Window(Frozen):
    """Both arms between two looks.

    Attributes:
        trailing_faults: Candidate faults in a row at the window's end.
        fault_clients: Whose requests the candidate failed, in the order they started; empty where it is not known.
        all_faults: Every candidate request of the window was a fault, so the run of the last window goes on.
        candidate_units: What counts once, in the candidate's arm.
        stable_units: The same in stable's.
        counts: Events of those units.
        sessions: Requests that count with their session only, in the order they started.
        votes: Which users were refused, in the order their requests started.
        in_flight: What had not ended at the window's end.
        began: When the first request started, seconds since 1970; 0 where single requests are not known.
        until: When the newest line was written, seconds since 1970; 0 without requests.
        behind: There is more in the log than a look reads.
    """

    candidate: ArmCounts
    stable: ArmCounts
    trailing_faults: int
    all_faults: bool
    candidate_units: int
    stable_units: int
    counts: tuple[MetricCounts, ...] = ()
    sessions: tuple[SessionRequest, ...] = ()
    fault_clients: tuple[str, ...] = ()
    votes: tuple[Vote, ...] = ()
    in_flight: InFlight = NOTHING_IN_FLIGHT
    began: float = 0.0
    until: float = 0.0
    behind: bool = False

    @property
    def saw_anything(self) -> bool:
        """Whether any request was seen, ended or in flight."""
        return self.began > 0.0 or self.candidate.requests + self.stable.requests > 0


def window(
    requests: Iterable[ObservedRequest],
    candidate: SlotName,
    thresholds: Thresholds,
    since: float,
    in_flight: InFlight = NOTHING_IN_FLIGHT,
) -> Window:
    """Count both arms over requests that started at or after `since` (before it, another split was in force).

    Args:
        requests: What the log told since the last look.
        candidate: The slot on trial.
        thresholds: What was fixed before the first step.
        since: Seconds since 1970.
        in_flight: What was in flight at the last look.
    """
    in_flight, sightings = in_flight.observe((r for r in requests if r.started_at >= since), thresholds)
    current = sorted(sightings, key=lambda sighting: sighting.request.started_at)
    mine = [sighting for sighting in current if sighting.request.arm == candidate]
    ended = [sighting.request for sighting in mine if not sighting.request.in_flight]
    trailing = 0
    for request in reversed(ended):
        if not request.fault:
            break
        trailing += 1
    alone: list[Unit] = []
    sessions: list[SessionRequest] = []
    units: Counter[bool] = Counter()
    for sighting in current:
        request = sighting.request
        unit = _unit(sighting, candidate, thresholds)
        if thresholds.unit == "session" and request.session is not None:
            sessions.append(SessionRequest(session=request.session, started_at=request.started_at, unit=unit))
        else:
            alone.append(unit)
            units[unit.on_trial] += sighting.started
    return Window(
        candidate=_count(mine),
        stable=_count([sighting for sighting in current if sighting.request.arm != candidate]),
        trailing_faults=trailing,
        all_faults=trailing == len(ended),
        candidate_units=units[True],
        stable_units=units[False],
        counts=count(alone, thresholds),
        sessions=tuple(sessions),
        fault_clients=tuple(client_of(request) or "" for request in ended if request.fault),
        votes=_votes(current, candidate),
        in_flight=in_flight,
        began=min((sighting.request.started_at for sighting in current), default=0.0),
        until=max((sighting.request.seen_at for sighting in current), default=0.0),
    )


def _votes(sightings: Iterable[Sighting], candidate: SlotName) -> tuple[Vote, ...]:
    requests = (sighting.request for sighting in sightings)
    votes = (vote_of(request, on_trial=request.arm == candidate) for request in requests)
    return tuple(vote for vote in votes if vote is not None)


def _unit(sighting: Sighting, candidate: SlotName, thresholds: Thresholds) -> Unit:
    request = sighting.request
    return unit_of(
        request,
        on_trial=request.arm == candidate,
        strata_bytes=thresholds.strata_bytes,
        long_bytes=thresholds.long_bytes,
        first_token=sighting.first_token,
        end_to_end=sighting.end_to_end,
    )


def count(units: Iterable[Unit], thresholds: Thresholds) -> tuple[MetricCounts, ...]:
    """The events of every metric, stratum by stratum and group by group."""
    strata: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        strata.setdefault((unit.stratum, unit.group if thresholds.clients else ""), []).append(unit)
    return tuple(
        MetricCounts(
            name=metric.name,
            stratum=stratum,
            group=group,
            kind=metric.kind,
            candidate=_events(metric, [unit for unit in found if unit.on_trial]),
            stable=_events(metric, [unit for unit in found if not unit.on_trial]),
        )
        for metric in thresholds.metrics
        for (stratum, group), found in sorted(strata.items())
    )


def _events(metric: MetricLimits, units: Iterable[Unit]) -> ArmEvents:
    values = values_of(units, metric)
    return ArmEvents(units=len(values), events=beyond(values, metric))


def _count(sightings: Sequence[Sighting]) -> ArmCounts:
    """Requests by their start, what became of them by their end."""
    requests = [sighting.request for sighting in sightings]
    return ArmCounts(
        requests=sum(sighting.started for sighting in sightings),
        errors=sum(request.error and not request.refused for request in requests),
        faults=sum(request.fault for request in requests),
        lost=sum(request.lost for request in requests),
    )

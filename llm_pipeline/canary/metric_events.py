"""The units that a canary counts (requests or whole sessions), and which of them are events of a metric.

An event is a value beyond a limit that was fixed before the first step. A session has an event when any of its
requests has one, and stable's limits are taken from stable's sessions in the same way, so that a session of many
requests is no more suspicious than another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.observations import ObservedRequest

STREAMED, WHOLE, LONG = "streamed answers", "whole answers", "the longest tenth of prompts"
_ROUTE = "requests to "

_MOST_SHARE = 0.5
"""Of all requests. A kind with more of them is seen in the tests of all."""


def kinds_of(request: ObservedRequest, long_bytes: int | None) -> tuple[str, ...]:
    """The kinds of a request, by what is known before its answer; none of one that is judged by its status only."""
    if request.by_status_only:
        return ()
    streamed = STREAMED if request.streaming else WHOLE
    is_long = long_bytes is not None and request.request_bytes > long_bytes
    return (streamed, *([LONG] if is_long else []), f"{_ROUTE}{request.route}")


def rare_kinds(kinds: Iterable[tuple[str, ...]], enough: float) -> tuple[str, ...]:
    """The kinds that have tests of their own: of half of the requests at most, and of so many at least.

    Faults of a rare kind are lost among all others: a candidate that fails a tenth of the 2 % of its requests that are
    streamed fails 0.2 % of them all. So such a kind has tests of errors and of the time to the last byte of its own,
    with limits of its own, within the same `alpha`.

    If two kinds have exactly the same requests (streams, and the only route that streams), only the first is tested.
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


MetricName = Literal[
    "errors",
    "slow first token",
    "slow tokens",
    "slow end to end",
    "truncated answers",
    "empty answers",
    "short answers",
    "long answers",
    "abandoned requests",
    "refusals",
    "unfinished answers",
    "repetitive answers",
    "odd characters",
]

CONTENTS: frozenset[MetricName] = frozenset({"repetitive answers", "odd characters"})
"""Shares of an answer's text."""

LATENCIES: frozenset[MetricName] = frozenset({"slow first token", "slow tokens", "slow end to end"})

RARE: frozenset[MetricName] = frozenset(get_args(MetricName)) - LATENCIES - {"short answers", "long answers"}
"""Metrics whose events are rare: faults, or values beyond those of nearly all of stable's answers."""

_CUT = "length"

_JUDGED: dict[MetricName, str] = {
    "errors": "error",
    "slow first token": "first_token",
    "slow tokens": "per_token",
    "slow end to end": "end_to_end",
    "truncated answers": "truncated",
    "empty answers": "empty",
    "short answers": "shortest",
    "long answers": "longest",
    "abandoned requests": "abandoned",
    "refusals": "refused",
    "unfinished answers": "unfinished",
    "repetitive answers": "repetition",
    "odd characters": "odd_characters",
}
"""The value of a unit that each metric is about."""

_HAPPENED = ("error", "truncated", "empty", "abandoned", "unfinished")
_MEASURED = ("first_token", "per_token", "end_to_end", "longest", "repetition", "odd_characters")
"""How the values of a session's requests are joined: `any`, or the largest; the least for `shortest`."""

CLIENT_GROUPS = 4
"""Groups of clients. Leaving one out loses its share of the evidence, so fewer groups would lose more."""

_UNMIXED_BITS = 2**8  # the lowest bits of a fingerprint say little of names that differ in their last letter


class Limit(Frozen):
    """A limit beyond which a unit has an event.

    Attributes:
        value: Milliseconds or tokens; for short answers an event is below it.
        label: Where it comes from, e.g. `p90` or `2 x p99` of stable's; empty for metrics without a limit.
    """

    value: float = 0.0
    label: str = ""


class MetricLimits(Frozen):
    """A metric with its limits; a single one of zero where events happen or do not.

    Attributes:
        kind: The kind of requests that it covers; empty for all.
    """

    name: MetricName
    limits: tuple[Limit, ...] = (Limit(),)
    kind: str = ""

    @property
    def title(self) -> str:
        """For people: `errors`, or `errors of streamed answers`."""
        return title_of(self.name, self.kind)


class Unit(Frozen):
    """A request or a session; a value is None if it cannot be judged.

    Attributes:
        on_trial: It belongs to the candidate's arm.
        stratum: Its class of prompt size.
        kinds: The rare kinds of requests that it belongs to.
        group: Its client's group, by fingerprint; empty if the client is unknown.
        error: It failed; None while it is in flight, and when its user left.
        first_token: Milliseconds to the first token of a streamed answer; a lower bound while it is in flight.
        per_token: Milliseconds for each output token after the first, of a streamed answer.
        end_to_end: Milliseconds to the end of the answer; a lower bound while it is in flight.
        truncated: The answer ended without its final chunk, or because the server gave it up.
        empty: The answer has no text.
        shortest: Output tokens of the shortest answer.
        longest: Output tokens of the longest answer.
        abandoned: The user left before the answer's end.
        refused: The request was refused; only for requests that have a vote (see `Voters`).
        unfinished: The answer stopped at its token limit.
        repetition: Of the text, a share.
        odd_characters: Of the text's characters, a share.
    """

    on_trial: bool
    stratum: str = ""
    group: str = ""
    kinds: tuple[str, ...] = ()
    error: bool | None = False
    first_token: float | None = None
    per_token: float | None = None
    end_to_end: float | None = None
    truncated: bool | None = None
    empty: bool | None = None
    shortest: int | None = None
    longest: int | None = None
    abandoned: bool | None = None
    refused: bool | None = None
    unfinished: bool | None = None
    repetition: float | None = None
    odd_characters: float | None = None


def title_of(name: MetricName, kind: str) -> str:
    """A metric for people: `errors`, or `errors of streamed answers`."""
    return f"{name} of {kind}" if kind else name


def unit_of(
    request: ObservedRequest,
    *,
    on_trial: bool,
    strata_bytes: Sequence[int] = (),
    long_bytes: int | None = None,
    first_token: bool = True,
    end_to_end: bool = True,
) -> Unit:
    """One request. Latencies of failed or refused requests are not judged.

    Args:
        request: Ended, or in flight.
        on_trial: It belongs to the candidate's arm.
        strata_bytes: Largest request sizes of all classes but the last, rising.
        long_bytes: The largest size outside the longest tenth; None if sizes are too alike.
        first_token: Its time to the first token is to be judged.
        end_to_end: Its whole time is to be judged; see `in_flight`.
    """
    stratum = str(bisect_left(strata_bytes, request.request_bytes))
    kinds = kinds_of(request, long_bytes)
    unit = Unit(on_trial=on_trial, stratum=stratum, group=group_of(client_of(request)), kinds=kinds)
    if request.error:
        return unit.model_copy(update={"error": not request.refused})
    if request.by_status_only:
        return unit.model_copy(update={"error": None if request.in_flight or request.cancelled else False})
    values: dict[str, object] = {"error": None}
    if not request.in_flight:
        values["abandoned"] = request.cancelled
        if not request.cancelled:
            values |= {"error": False, "truncated": request.truncated, "empty": request.empty}
            values |= {"shortest": request.output_tokens, "longest": request.output_tokens}
            values |= {"repetition": request.repetition, "odd_characters": request.odd_characters}
            if request.finish_reason:
                values["unfinished"] = request.finish_reason == _CUT
    values |= _latencies(request, first_token=first_token, end_to_end=end_to_end)
    return unit.model_copy(update=values)


def _latencies(request: ObservedRequest, *, first_token: bool, end_to_end: bool) -> dict[str, float | None]:
    """Latencies of a request without an answer: how long it has waited."""
    unanswered = request.in_flight or request.cancelled
    first = request.first_byte_milliseconds
    if first is None and unanswered:
        first = request.total_milliseconds
    return {
        "first_token": first if request.streaming and first_token else None,
        "per_token": None if unanswered else request.per_token_milliseconds,
        "end_to_end": request.total_milliseconds if end_to_end else None,
    }


def client_of(request: ObservedRequest) -> str | None:
    """The client of a request, as far as the router knows it: its address, or else its session."""
    return request.client or request.session


def group_of(client: str | None) -> str:
    """One of a few groups of clients; no client is in two."""
    return "" if client is None else str(int(client, 16) // _UNMIXED_BITS % CLIENT_GROUPS)


def joined(one: Unit, other: Unit) -> Unit:
    """Two units as one, in the arm and the stratum of the first."""
    both = {name: (getattr(one, name), getattr(other, name)) for name in (*_HAPPENED, *_MEASURED, "shortest")}
    known = {name: [value for value in values if value is not None] for name, values in both.items()}
    joined = {name: any(known[name]) if known[name] else None for name in _HAPPENED}
    joined |= {name: max(known[name], default=None) for name in _MEASURED}
    return one.model_copy(update={**joined, "shortest": min(known["shortest"], default=None)})


def value_of(unit: Unit, name: MetricName) -> float | None:
    """The unit's value of a metric, to be compared with its limits (see `beyond`); None if it has none."""
    value = getattr(unit, _JUDGED[name])
    return None if value is None else float(value)


def values_of(units: Iterable[Unit], metric: MetricLimits) -> list[float]:
    """The values of a metric, of the units of its kind."""
    of_kind = (unit for unit in units if not metric.kind or metric.kind in unit.kinds)
    return [value for unit in of_kind if (value := value_of(unit, metric.name)) is not None]


def beyond(values: Iterable[float], metric: MetricLimits) -> tuple[int, ...]:
    """How many of the values are events at each of the metric's limits."""
    found = list(values)
    if metric.name == "short answers":
        return tuple(sum(value < limit.value for value in found) for limit in metric.limits)
    return tuple(sum(value > limit.value for value in found) for limit in metric.limits)

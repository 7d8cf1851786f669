"""What users saw, request by request, as the router's access log tells it; and the timeline that the report draws.

A request belongs to the arm whose cluster the router chose, whichever slot answered it. If the other slot answered, or
a second attempt was needed, the arm's own server failed and fail-over hid it: the user lost nothing, and the fault
still counts against the arm.

The log has a line when a request ends, and one a second while it is in flight, so a request that hangs is seen, too.
Of the answers of OpenAI's API it has times and texts; of Triton's own API and of gRPC the status alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from llm_pipeline.base.records import Frozen
from llm_pipeline.canary.arm_names import FAILOVER_SUFFIX, plain_name
from llm_pipeline.canary.router import SlotName

# invalid argument, not found, already exists, permission denied, failed precondition, out of range, unimplemented,
# unauthenticated: both versions would answer the same request like that. Any other but OK is the server's fault.
_REFUSING_GRPC_STATUSES = frozenset({3, 5, 6, 7, 9, 11, 12, 16})
_FAULT_FLAGS = frozenset({"UF", "UO", "NR", "NC", "UT", "LR", "UR", "UC", "UPE", "UMSDR", "OM", "NFCF", "UH"})
_CANCELLED_FLAGS = frozenset({"DC", "DR"})
_ROUTES = ("/chat/completions", "/completions")
_GIVEN_UP = ("", "cancelled", "abort")
_CALLS_TOOLS = ("tool_calls", "function_call")
_IN_FLIGHT = "DownstreamPeriodic"
_SLOTS: dict[str, SlotName] = {"blue": "blue", "green": "green"}

SlotOfAddress = Callable[[str | None], SlotName | None]
"""The slot of an upstream address, as the log has it."""


@dataclass(frozen=True)
class ObservedRequest:
    """One request: as it ended, or as it was while it was in flight.

    Attributes:
        started_at: Seconds since 1970.
        arm: The slot that the router chose.
        on_trial: The arm was the candidate's at that time.
        fault: The server of the arm failed it, hidden by fail-over or not.
        error: A fault, or a refusal (4xx) by every server that was asked.
        lost: The user saw a failure.
        refused: Every server that was asked refused it (4xx).
        cancelled: The user disconnected before the answer's end.
        in_flight: It had not ended; its times are those until the line was written.
        streaming: The answer was a stream of tokens.
        route: The end of the path of a completion; empty for others.
        by_status_only: It is none, so nothing but its status is judged.
        first_byte_milliseconds: From the request's last byte until the answer's first byte; None without an answer.
        total_milliseconds: From there until its last byte, or until the user went away, or its age in flight.
        bytes_sent: Size of the answer's body.
        stream_milliseconds: From the answer's first byte to its last; None without an answer.
        request_bytes: Size of the request's body.
        identity: The request's id, the same in all its lines; empty where the router does not log it.
        server: The slot that answered, or was asked last; None where that is not known.
        output_tokens: By the answer's own count; None where the router could not read it.
        finish_reason: From the answer's last chunk; empty if there was none.
        empty: The answer has no text and calls no tool; None where it could not be read to its end.
        truncated: The answer has no final chunk, or the server gave it up; None like `empty`.
        repetition: Share of the text's pieces that occurred before in it; None where the text is short or unread.
    """

    started_at: float
    arm: SlotName
    on_trial: bool
    fault: bool
    error: bool
    lost: bool
    cancelled: bool
    streaming: bool
    first_byte_milliseconds: float | None
    total_milliseconds: float
    bytes_sent: int
    stream_milliseconds: float | None = None
    request_bytes: int = 0
    identity: str = ""
    route: str = ""
    by_status_only: bool = False
    refused: bool = False
    in_flight: bool = False
    server: SlotName | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    empty: bool | None = None
    truncated: bool | None = None
    repetition: float | None = None

    @property
    def seen_at(self) -> float:
        """When its line was written, by the router's clock: seconds since 1970."""
        return self.started_at + self.total_milliseconds / 1000

    @property
    def per_token_milliseconds(self) -> float | None:
        """Time per output token after the first; None without a stream of two tokens or more."""
        tokens, time = self.output_tokens or 0, self.stream_milliseconds
        return time / (tokens - 1) if self.streaming and time is not None and tokens > 1 else None


class ArmPoint(Frozen):
    """One arm in one interval of the timeline; latencies in milliseconds, None without requests."""

    requests: int
    errors: int
    lost: int = 0
    first_token_p50: float | None = None
    first_token_p95: float | None = None
    end_to_end_p50: float | None = None
    end_to_end_p95: float | None = None
    per_token_p50: float | None = None
    per_token_p95: float | None = None
    truncated: int = 0
    empty: int = 0
    abandoned: int = 0


class TimelinePoint(Frozen):
    """Both arms in one interval.

    Attributes:
        at_seconds: Start of the interval, seconds since the canary began.
        length_seconds: Its length; timelines of before this field do not say theirs.
        intended_share: Share of traffic that the candidate should have had at the interval's end.
    """

    at_seconds: float
    length_seconds: float = 1.0
    intended_share: float
    candidate: ArmPoint
    stable: ArmPoint

    @property
    def percent(self) -> float:
        """The intended share in percent."""
        return 100 * self.intended_share


def timeline(
    requests: Iterable[ObservedRequest],
    shares: Sequence[tuple[float, float]],
    *,
    candidate: SlotName,
    began_at: float,
    interval_seconds: float = 1.0,
) -> list[TimelinePoint]:
    """Both arms over time.

    Args:
        requests: What was observed.
        shares: (time, the candidate's share from then on), rising in time.
        candidate: The slot on trial.
        began_at: Start of the timeline, seconds since 1970.
        interval_seconds: Length of an interval.
    """
    bins: dict[int, tuple[list[ObservedRequest], list[ObservedRequest]]] = {}
    for request in requests:
        index = math.floor((request.started_at - began_at) / interval_seconds)
        if index >= 0:
            bins.setdefault(index, ([], []))[request.arm != candidate].append(request)
    points = []
    for index in range(max(bins, default=-1) + 1):
        mine, others = bins.get(index, ([], []))
        end = began_at + (index + 1) * interval_seconds
        share = next((share for since, share in reversed(shares) if since <= end), 0.0)
        point = TimelinePoint(
            at_seconds=index * interval_seconds,
            length_seconds=interval_seconds,
            intended_share=share,
            candidate=arm_point(mine),
            stable=arm_point(others),
        )
        points.append(point)
    return points


def quantile(values: Sequence[float], level: float) -> float | None:
    """The smallest value that at least `level` of the values do not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(level * len(values)) - 1)]


def arm_point(requests: Sequence[ObservedRequest]) -> ArmPoint:
    """One arm's requests as a point of the timeline; first tokens are those of streamed answers."""
    judged = [request for request in requests if not request.by_status_only]
    answered = [request for request in judged if not request.error and not request.cancelled]
    first = [r.first_byte_milliseconds for r in answered if r.streaming and r.first_byte_milliseconds is not None]
    total = [request.total_milliseconds for request in answered]
    each = [time for request in answered if (time := request.per_token_milliseconds) is not None]
    return ArmPoint(
        requests=len(requests),
        errors=sum(request.error for request in requests),
        lost=sum(request.lost for request in requests),
        first_token_p50=quantile(first, 0.5),
        first_token_p95=quantile(first, 0.95),
        end_to_end_p50=quantile(total, 0.5),
        end_to_end_p95=quantile(total, 0.95),
        per_token_p50=quantile(each, 0.5),
        per_token_p95=quantile(each, 0.95),
        truncated=sum(bool(request.truncated) for request in answered),
        empty=sum(bool(request.empty) for request in answered),
        abandoned=sum(request.cancelled for request in requests),
    )


def parse_line(line: bytes, slot_of_address: SlotOfAddress) -> ObservedRequest | None:
    """One line of the log; None for a request that reached no arm.

    Raises:
        ValueError: The line is damaged, or one of its numbers is none.
    """
    try:
        entry = json.loads(line.decode(errors="replace"), parse_constant=_no_number)
        arm, on_trial = _arm(entry.get("cluster"))
        return None if arm is None else _request(entry, arm, slot_of_address, on_trial=on_trial)
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a line of an access log: {error}") from error


def _request(
    entry: Mapping[str, Any], arm: SlotName, slot_of_address: SlotOfAddress, *, on_trial: bool
) -> ObservedRequest:
    path = str(entry["path"] or "").partition("?")[0]
    in_flight = entry.get("type") == _IN_FLIGHT
    ending = "in flight" if in_flight else _ending(entry)
    server = slot_of_address(entry.get("host"))
    elsewhere = (_count(entry["attempts"]) or 0) > 1 or server != arm
    route = next((route for route in _ROUTES if path.endswith(route)), "")
    asking = _positive(entry.get("asked_ms")) or 0.0
    broken, refused = ending == "failed", ending == "refused"
    fault = broken or (ending == "answered" and elsewhere)
    has_text = entry.get("has_text") if route and ending in ("answered", "failed") else None
    read = has_text is not None and _count(entry["code"]) == HTTPStatus.OK
    reason = str(entry.get("finish_reason") or "")
    return ObservedRequest(
        started_at=_finite(entry["started_at"]),
        arm=arm,
        on_trial=on_trial,
        fault=fault,
        error=fault or refused,
        lost=broken or refused,
        refused=refused,
        cancelled=ending == "abandoned",
        in_flight=in_flight,
        server=server,
        streaming=entry.get("stream") == "1",
        first_byte_milliseconds=_after(asking, entry.get("first_byte_ms")),
        total_milliseconds=_after(asking, entry.get("total_ms")) or 0.0,
        bytes_sent=_count(entry.get("bytes")) or 0,
        stream_milliseconds=_positive(entry.get("stream_ms")),
        request_bytes=_count(entry.get("request_bytes")) or 0,
        identity=str(entry.get("id") or ""),
        route=route,
        by_status_only=not route,
        output_tokens=_count(entry.get("output_tokens")) if read else None,
        finish_reason=reason,
        empty=has_text != "1" and reason not in _CALLS_TOOLS if read else None,
        truncated=reason in _GIVEN_UP if read else None,
        repetition=_positive(entry.get("repetition")) if read else None,
    )


def _ending(entry: Mapping[str, Any]) -> Literal["answered", "failed", "refused", "abandoned"]:
    """How a request ended; a call of a method that is not offered was refused, for which gRPC has its own status."""
    code, status = _count(entry["code"]) or 0, entry.get("grpc_status")
    flags = set(str(entry.get("flags") or "-").split(",")) - {"-"}
    if flags & _CANCELLED_FLAGS:
        return "abandoned"
    inside = code == HTTPStatus.OK and entry.get("reported_error") is not None
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR or code == 0 or flags & _FAULT_FLAGS or inside:
        return "failed"
    if code >= HTTPStatus.BAD_REQUEST or status in _REFUSING_GRPC_STATUSES:
        return "refused"
    return "answered" if status in (None, 0) else "failed"


def _arm(cluster: object) -> tuple[SlotName | None, bool]:
    name = str(cluster)
    slot = plain_name(name).removesuffix("_grpc").removesuffix("_openai")
    return _SLOTS.get(slot), name.endswith(FAILOVER_SUFFIX)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _finite(value: Any) -> float:
    """A number, or text that holds one. Anything else raises TypeError: the line is damaged."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{value} is not a number")
    return found


def _after(asking: float, value: Any) -> float | None:
    """Milliseconds from the request's last byte: a slow upload is not the server's fault."""
    found = _positive(value)
    return None if found is None else max(0.0, found - asking)


def _positive(value: Any) -> float | None:
    """Raises ValueError for a time or a share that cannot be."""
    if value is None:
        return None
    found = _finite(value)
    if found < 0:
        raise ValueError(f"{value} is negative")
    return found


def _count(value: Any) -> int | None:
    found = _positive(value)
    return None if found is None else int(found)

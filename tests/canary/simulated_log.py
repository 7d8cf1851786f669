"""The router's log of a target in memory; see `simulated`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llm_pipeline.base.errors import Transient
from llm_pipeline.canary.access_log import LogCursor, ObservedRequest
from llm_pipeline.canary.router import ALL, SlotName

if TYPE_CHECKING:
    from simulated import Site


class AccessLog:
    """At each look as many requests as the weights say, the candidate's with the site's share of faults."""

    def __init__(self, site: Site) -> None:
        self.site, self.count = site, 0

    def end(self) -> LogCursor:
        return LogCursor(offset=self.count)

    def recent(self, since: float, most_bytes: int = 0) -> list[ObservedRequest]:
        del since, most_bytes
        weights = self.site.router.state.weights
        return [self._request(max(weights, key=lambda slot: weights[slot]), number) for number in range(100)]

    behind = False

    def read(self, cursor: LogCursor, most_bytes: int = 0) -> tuple[list[ObservedRequest], LogCursor]:
        del cursor, most_bytes
        if self.site.source_down:
            raise Transient("no metrics")
        if self.site.stable_ends and self.site.router.state.weights.get("green"):
            self.site.running.discard("blue")
            self.site.stable_ends = False
        weights, total = self.site.router.state.weights, self.site.requests_per_look
        if self.site.router_ended:
            return [], self.end()
        self.count += total
        requests = [
            self._request(slot, number)
            for slot, weight in weights.items()
            for number in range(round(total * weight / ALL))
        ]
        return requests, self.end()

    def _request(self, slot: SlotName, number: int) -> ObservedRequest:
        on_trial = slot == self.site.router.state.candidate
        fault = (on_trial and self.site.faulty) or slot not in self.site.running
        slow = on_trial and self.site.slow
        left = on_trial and number % 10 < 10 * self.site.abandoned
        other: SlotName = "green" if slot == "blue" else "blue"
        elsewhere = slot not in self.site.running and other in self.site.running
        waits = on_trial and number % 10 < 10 * self.site.waiting
        return ObservedRequest(
            started_at=time.time(),
            arm=slot,
            on_trial=on_trial,
            fault=fault,
            error=fault,
            lost=False,
            cancelled=left,
            in_flight=waits,
            identity=f"{self.count}-{number}" if waits else "",
            streaming=False,
            first_byte_milliseconds=None if left or waits else 5.0,
            total_milliseconds=3000.0 if left or waits else 500.0 if slow else 10.0 + number % 7,
            server=other if elsewhere else slot,
            truncated=None if left or waits or fault else False,
            repetition=0.95 if on_trial and self.site.garbled else 0.1 + number % 7 / 100,
        )

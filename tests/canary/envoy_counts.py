"""Envoy's own counters as a source of counts: requests by the arm that was chosen, failures by who answered them.

Fail-over hides a candidate's failures from users and from the statistics of its arm (both servers answer under the
name of the aggregate cluster). So the candidate is charged with every request of its arm that its own server did not
answer well: failures, refused connections, and requests that were sent past it while it was ejected. Stable's server
is never ejected, so it is charged with what its arm lost and with what only a second attempt answered. Failures inside
a stream of status 200 show only in the access log.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from typing import Any, get_args

from llm_pipeline.adapters.envoy.router import EnvoyRouter
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary import router as names
from llm_pipeline.canary.metrics import ArmWindow, MetricsCursor, MetricsWindow, SourceDown
from llm_pipeline.canary.router import RouterUnavailable, SlotName

log = get_logger(__name__)

_CLUSTERS = r"^cluster\.(blue|green)(_grpc)?(_failover|_backed)?\.upstream_rq_(completed|4xx|5xx|retry_success)$"
_COUNTED = ("requests", "errors", "lost")


class EnvoyStatistics:
    """The `ArmMetrics` port on the admin interface of the router."""

    def __init__(self, router: EnvoyRouter) -> None:
        self._router = router

    def begin(self, seconds_ago: float = 0.0) -> MetricsCursor:  # noqa: ARG002 - counters know no past
        """Counting begins now; Envoy cannot look back."""
        now = time.time()
        return MetricsCursor(began=now, until=now, counters=self._counters())

    def window(self, since: MetricsCursor) -> MetricsWindow:
        """What both slots did since the cursor; after a restart of Envoy, what it has counted since then."""
        now, counters = time.time(), self._counters()
        before = since.counters
        if any(counters[f"{slot} requests"] < before.get(f"{slot} requests", 0) for slot in get_args(SlotName)):
            log.warning("the router has restarted, its counters began anew")
            before = {}
        # Two questions are asked one after the other, so the difference of their answers may shrink; it is never less.
        counters = {name: max(count, before.get(name, 0)) for name, count in counters.items()}
        grown = {name: count - before.get(name, 0) for name, count in counters.items()}
        arms = {slot: ArmWindow(**{name: grown[f"{slot} {name}"] for name in _COUNTED}) for slot in get_args(SlotName)}
        return MetricsWindow(arms=arms, cursor=MetricsCursor(began=since.began, until=now, counters=counters))

    def _counters(self) -> dict[str, int]:
        """All counts since Envoy started."""
        try:
            clusters = _by_cluster(self._router.admin(f"/stats?filter={_CLUSTERS}"))
            hosts = json.loads(self._router.admin("/clusters?format=json"))  # later: what misses here was not answered
        except (RouterUnavailable, ValueError) as error:
            raise SourceDown(f"Envoy's statistics: {error}", where=self._router.place.admin_url) from error
        answered = _answered_well(hosts)
        found: Counter[str] = Counter()
        for slot in get_args(SlotName):
            for protocol in get_args(names.ArmProtocol):
                name = names.cluster_name(slot, protocol)
                stable = clusters[name] + clusters[name + names.BACKED_SUFFIX]
                tried = clusters[name + names.FAILOVER_SUFFIX]
                missed = tried["upstream_rq_completed"] - answered[name + names.GUARDED_SUFFIX]
                found[f"{slot} requests"] += stable["upstream_rq_completed"] + tried["upstream_rq_completed"]
                found[f"{slot} errors"] += _lost(stable) + stable["upstream_rq_retry_success"] + max(0, missed)
                found[f"{slot} lost"] += _lost(stable) + _lost(tried)
        return dict(found)


def _by_cluster(statistics: str) -> defaultdict[str, Counter[str]]:
    """Counters by cluster, from lines such as `cluster.blue.upstream_rq_completed: 7`."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in statistics.splitlines():
        name, _, value = line.partition(": ")
        _, cluster, counter = name.split(".", 2)
        found[cluster][counter] = int(value)
    return found


def _answered_well(listing: dict[str, Any]) -> Counter[str]:
    """Requests that its servers answered well, by cluster."""
    found: Counter[str] = Counter()
    for cluster in listing.get("cluster_statuses", []):
        for host in cluster.get("host_statuses", []):
            statistics = {entry["name"]: int(entry.get("value", 0)) for entry in host.get("stats", [])}
            found[cluster["name"]] += statistics.get("rq_success", 0)
    return found


def _lost(arm: Counter[str]) -> int:
    return arm["upstream_rq_4xx"] + arm["upstream_rq_5xx"]

"""CloudWatch as a source of counts: what an Application Load Balancer reports of its target groups, minute by minute.

It reports nothing for a minute without requests, nor for a target group that does not exist. So without data there is
no window yet, and after a while an error. Requests for which no target was found (the load balancer answers 503) are in
no target group's counts; the router's `usable` shows those.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from llm_pipeline.adapters.aws.adapter import AwsAlbPlace, CloudWatchSource
from llm_pipeline.adapters.aws.client import aws_client
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.arm_metrics import (
    ArmWindow,
    MetricsCursor,
    MetricsWindow,
    SourceDown,
    check_total,
)
from llm_pipeline.canary.router import SlotName, TrafficRouter

_NAMESPACE = "AWS/ApplicationELB"
_PERIOD_SECONDS = 60
_REQUESTS = "RequestCount"
_ERRORS = ("HTTPCode_Target_4XX_Count", "HTTPCode_Target_5XX_Count", "TargetConnectionErrorCount")
_SLOTS: tuple[SlotName, ...] = ("blue", "green")


class CloudWatchMetrics:
    """The `ArmMetrics` port on CloudWatch."""

    def __init__(self, source: CloudWatchSource, place: AwsAlbPlace) -> None:
        """Creates the client without sending a request.

        Args:
            source: How much is expected of the data.
            place: The load balancer's rule and target groups.

        Raises:
            Unsupported: boto3 is not installed in this interpreter.
            ConfigError: There is no region.
        """
        self._source = source
        self._load_balancer = "/".join(place.rule.split("/")[1:4])
        groups = {"blue": place.target_groups.blue, "green": place.target_groups.green}
        self._groups = {slot: groups[slot].rsplit(":", 1)[1] for slot in _SLOTS}
        self._client = aws_client("cloudwatch", place.region, place.endpoint_url, where=place.rule)

    def begin(self, seconds_ago: float = 0.0) -> MetricsCursor:
        """Counting begins with the next whole minute."""
        start = _minute(time.time() - seconds_ago) + _PERIOD_SECONDS
        return MetricsCursor(began=start, until=start)

    def window(self, since: MetricsCursor) -> MetricsWindow:
        """What both slots did in the whole minutes since the cursor."""
        now = time.time()
        end = _minute(now - self._source.delay_seconds)
        if end <= since.until:
            return MetricsWindow(arms={}, cursor=since)
        sums = self._sums(since.until, end)
        arms = {slot: self._arm(slot, sums) for slot in _SLOTS}
        if not any(arm.requests for arm in arms.values()):
            return self._nothing(since, now)
        if self._source.exclusive:
            requests: dict[str, int] = {slot: arm.requests for slot, arm in arms.items()}
            check_total(requests, sums["total"], what=self._load_balancer)
        return MetricsWindow(arms=arms, cursor=MetricsCursor(began=since.began, until=end))

    def _arm(self, slot: SlotName, sums: dict[str, int]) -> ArmWindow:
        """A request may fail to connect more than once."""
        requests = sums[f"{slot}0"]
        errors = min(requests, sum(sums[f"{slot}{number}"] for number in range(1, len(_ERRORS) + 1)))
        return ArmWindow(requests=requests, errors=errors, lost=errors)

    def _nothing(self, since: MetricsCursor, now: float) -> MetricsWindow:
        if now - since.until > self._source.delay_seconds + self._source.stale_seconds:
            raise SourceDown(
                f"no request of either slot for {now - since.until:.0f} s",
                where=f"{_NAMESPACE} {self._load_balancer}",
                hint="no users, or target groups that another load balancer uses",
            )
        return MetricsWindow(arms={}, cursor=since)

    def _sums(self, start: float, end: float) -> dict[str, int]:
        """The sum of every metric: `<slot>0` are requests, further numbers errors, `total` the load balancer's."""
        sums = {query["Id"]: 0 for query in self._queries()}
        for result in self._results(start, end):
            if result["StatusCode"] not in ("Complete", "PartialData"):  # partial ones are continued by the next page
                raise SourceDown(f"{result['Label']}: {result['StatusCode']}", where=_NAMESPACE)
            sums[result["Id"]] += round(sum(result["Values"]))
        return sums

    def count(self) -> int:
        """How many of the series that are read have counted anything in the last ten minutes.

        Raises:
            SourceDown: CloudWatch does not answer, or refuses.
        """
        now = _minute(time.time())
        return sum(bool(result["Values"]) for result in self._results(now - 10 * _PERIOD_SECONDS, now))

    def _results(self, start: float, end: float) -> Iterator[dict[str, Any]]:
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        times = {"StartTime": datetime.fromtimestamp(start, UTC), "EndTime": datetime.fromtimestamp(end, UTC)}
        try:
            for page in self._client.get_paginator("get_metric_data").paginate(
                MetricDataQueries=list(self._queries()), **times
            ):
                if messages := page.get("Messages"):
                    raise SourceDown("; ".join(str(one.get("Value")) for one in messages), where=_NAMESPACE)
                yield from page["MetricDataResults"]
        except ParamValidationError as error:
            raise ConfigError(str(error), where=_NAMESPACE) from error
        except ClientError as error:
            hint = "the credentials need cloudwatch:GetMetricData"
            raise SourceDown(str(error), where=_NAMESPACE, hint=hint) from error
        except BotoCoreError as error:
            raise SourceDown(f"CloudWatch does not answer: {error}", where=_NAMESPACE) from error

    def _queries(self) -> Iterator[dict[str, Any]]:
        for slot in _SLOTS:
            for number, metric in enumerate((_REQUESTS, *_ERRORS)):
                yield self._query(f"{slot}{number}", metric, TargetGroup=self._groups[slot])
        yield self._query("total", _REQUESTS)

    def _query(self, name: str, metric: str, **dimensions: str) -> dict[str, Any]:
        named = {"LoadBalancer": self._load_balancer, **dimensions}
        described = {
            "Namespace": _NAMESPACE,
            "MetricName": metric,
            "Dimensions": [{"Name": key, "Value": value} for key, value in named.items()],
        }
        return {"Id": name, "MetricStat": {"Metric": described, "Period": _PERIOD_SECONDS, "Stat": "Sum"}}


def _minute(seconds: float) -> float:
    return seconds // _PERIOD_SECONDS * _PERIOD_SECONDS


def open_source(
    source: CloudWatchSource, place: AwsAlbPlace, _router: TrafficRouter | None = None
) -> CloudWatchMetrics:
    """The source that a place names, whose router is a load balancer."""
    return CloudWatchMetrics(source, place)


def probe(source: CloudWatchSource, place: AwsAlbPlace) -> str:
    """How many series have counted something; what `doctor` says of it."""
    return f"CloudWatch answers: {open_source(source, place).count()} series counted in the last ten minutes"

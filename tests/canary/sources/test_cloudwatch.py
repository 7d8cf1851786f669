"""Counts from CloudWatch, against moto's.

What that does not prove: that Elastic Load Balancing reports under these names and dimensions (they are from Amazon's
page of its metrics), how late it does, and answers in parts.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from llm_pipeline.adapters.aws import adapter, cloudwatch
from llm_pipeline.adapters.aws.adapter import AwsAlbPlace, CloudWatchSource, TargetGroups
from llm_pipeline.adapters.aws.cloudwatch import CloudWatchMetrics
from llm_pipeline.canary.arm_metrics import MetricsCursor, SourceContradicts, SourceDown

ARN = "arn:aws:elasticloadbalancing:us-east-1:123456789012"
MINUTE = 60
NOW = time.time()


class LoadBalancer:
    """What Elastic Load Balancing would report, under a name of its own for each test."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self.identity = f"{time.time_ns():016x}"[-16:]
        self.endpoint = endpoint
        self.client = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=endpoint)

    @property
    def place(self) -> AwsAlbPlace:
        groups = {slot: f"{ARN}:targetgroup/{slot}/{self.identity}" for slot in ("blue", "green")}
        rule = f"{ARN}:listener-rule/app/llm/{self.identity}/0123456789abcdef/0123456789abcdef"
        return AwsAlbPlace(
            kind="aws_alb", rule=rule, target_groups=TargetGroups(**groups), region="us-east-1",
            endpoint_url=self.endpoint,
        )  # fmt: skip

    def report(self, at: float, metric: str, value: float, slot: str | None) -> None:
        dimensions = {"LoadBalancer": f"app/llm/{self.identity}"}
        if slot is not None:
            dimensions["TargetGroup"] = f"targetgroup/{slot}/{self.identity}"
        data = {
            "MetricName": metric, "Value": value, "Unit": "Count", "Timestamp": datetime.fromtimestamp(at, UTC),
            "Dimensions": [{"Name": name, "Value": text} for name, text in dimensions.items()],
        }  # fmt: skip
        self.client.put_metric_data(Namespace="AWS/ApplicationELB", MetricData=[data])


@pytest.fixture
def balancer(s3: Any, monkeypatch: pytest.MonkeyPatch) -> LoadBalancer:
    monkeypatch.setattr(cloudwatch, "time", SimpleNamespace(time=lambda: NOW))  # no minute ends meanwhile
    return LoadBalancer(s3.endpoint)


def metrics(balancer: LoadBalancer, **changes: Any) -> CloudWatchMetrics:
    return CloudWatchMetrics(CloudWatchSource(kind="cloudwatch", delay_seconds=MINUTE, **changes), balancer.place)


def minutes_ago(count: int) -> float:
    return (NOW // MINUTE - count) * MINUTE


def since(minutes: int) -> MetricsCursor:
    return MetricsCursor(began=minutes_ago(minutes), until=minutes_ago(minutes))


def test_doctor_asks_cloudwatch_once(balancer):
    balancer.report(minutes_ago(3), "RequestCount", 90, "blue")
    source = CloudWatchSource(kind="cloudwatch")
    told = adapter.METRICS.probe(source, balancer.place)
    assert told == "CloudWatch answers: 1 series counted in the last ten minutes"
    nowhere = balancer.place.model_copy(update={"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(SourceDown):
        adapter.METRICS.probe(source, nowhere)


def test_whole_minutes_are_counted_and_windows_tile(balancer):
    for ago, slot, metric, value in [
        (6, "blue", "RequestCount", 1000),  # before the window
        (5, "blue", "RequestCount", 90),
        (4, "blue", "RequestCount", 95),
        (4, "blue", "TargetConnectionErrorCount", 500),  # tries, of which a request has several
        (4, "green", "RequestCount", 11),
        (5, "green", "HTTPCode_Target_5XX_Count", 2),
        (4, "green", "HTTPCode_Target_4XX_Count", 1),
        (4, "green", "TargetConnectionErrorCount", 3),
        (3, "green", "RequestCount", 7),
        (1, "green", "RequestCount", 1000),  # a minute that may not be complete
    ]:
        balancer.report(minutes_ago(ago) + 5, metric, value, slot)
    source = metrics(balancer)
    found = source.window(since(5))
    arms = {slot: (arm.requests, arm.errors, arm.end_to_end) for slot, arm in found.arms.items()}
    assert arms == {"blue": (185, 185, None), "green": (18, 6, None)}
    again = source.window(found.cursor)
    assert (again.arms, again.cursor) == ({}, found.cursor)


def test_no_data_is_no_window_and_after_a_while_an_error(balancer):
    source = metrics(balancer, stale_seconds=5 * MINUTE)
    assert source.window(since(4)).arms == {}
    assert source.window(since(4)).cursor == since(4), "the next one begins there"
    with pytest.raises(SourceDown, match="no request of either slot"):
        source.window(since(8))


@pytest.mark.parametrize(("total", "contradicts"), [(100, False), (160, True)])
def test_both_groups_have_the_requests_of_a_load_balancer_that_serves_nothing_else(balancer, total, contradicts):
    balancer.report(minutes_ago(3), "RequestCount", 80, "blue")
    balancer.report(minutes_ago(3), "RequestCount", 20, "green")
    balancer.report(minutes_ago(3), "RequestCount", total, None)
    assert metrics(balancer).window(since(4)).arms["blue"].requests == 80
    if not contradicts:
        assert metrics(balancer, exclusive=True).window(since(4)).arms["green"].requests == 20
        return
    with pytest.raises(SourceContradicts, match="the arms have 100 requests"):
        metrics(balancer, exclusive=True).window(since(4))


def test_the_minute_of_a_shift_belongs_to_the_time_before(balancer):
    until = metrics(balancer).begin().until
    assert until % MINUTE == 0
    assert 0 < until - NOW <= MINUTE


def test_without_an_answer_there_are_no_zeros(balancer):
    balancer.endpoint = "http://127.0.0.1:9"
    with pytest.raises(SourceDown, match="does not answer"):
        metrics(balancer).window(since(5))

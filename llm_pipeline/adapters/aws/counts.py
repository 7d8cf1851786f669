"""The settings of the metric source `cloudwatch`, what opens it, and its probe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from llm_pipeline.base.adapters import Adapter
from llm_pipeline.config.metric_source import MetricSourceModel
from llm_pipeline.config.model import PositiveSeconds
from llm_pipeline.config.router_place import AwsAlbPlace, RouterPlace

if TYPE_CHECKING:
    from llm_pipeline.adapters.aws.cloudwatch import CloudWatchMetrics
    from llm_pipeline.canary.router import TrafficRouter


class CloudWatchSource(MetricSourceModel):
    """CloudWatch's counts of the target groups of an `aws_alb` router: requests and errors, no latencies.

    Attributes:
        exclusive: The load balancer serves nothing else, so both groups together must have about all its requests.
        delay_seconds: Minutes younger than this are not complete.
        stale_seconds: So long without any request of either slot means that the source is down: CloudWatch has no data
            for idle target groups, and none for wrong names.
    """

    kind: Literal["cloudwatch"]
    exclusive: bool = False
    delay_seconds: PositiveSeconds = 120.0
    stale_seconds: PositiveSeconds = 600.0

    def problems(self, router: RouterPlace) -> Iterator[str]:
        """CloudWatch counts the requests of load balancers."""
        if not isinstance(router, AwsAlbPlace):
            yield f"metrics cloudwatch count the requests of an aws_alb router, and it is {router.kind}"


def _open(source: CloudWatchSource, place: AwsAlbPlace, _router: TrafficRouter | None = None) -> CloudWatchMetrics:
    from llm_pipeline.adapters.aws.cloudwatch import CloudWatchMetrics

    return CloudWatchMetrics(source, place)


def _probe(source: CloudWatchSource, place: AwsAlbPlace) -> str:
    return f"CloudWatch answers: {_open(source, place).count()} series counted in the last ten minutes"


ADAPTER = Adapter(config=CloudWatchSource, open=_open, probe=_probe)

"""The settings of the metric source `cloudwatch`, what opens it, and its probe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from llm_pipeline.adapters.aws.listener_rule import AwsAlbPlace
from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.metric_source import MetricSourceModel
from llm_pipeline.config.model import PositiveSeconds
from llm_pipeline.config.router_place import RouterPlace


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


_SOURCE = "llm_pipeline.adapters.aws.cloudwatch"
ADAPTER = Adapter(config=CloudWatchSource, open=OnCall(f"{_SOURCE}:open_source"), probe=OnCall(f"{_SOURCE}:probe"))

"""The settings of the router `aws_alb`, what opens it, and its probe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.canary.router_adapter import remote
from llm_pipeline.config.metric_source import MetricSourceModel
from llm_pipeline.config.model import PlainUrl, PositiveSeconds, Word
from llm_pipeline.config.router_place import BothSlots, RouterModel, RouterPlace

_ELB = r"^arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:\d{12}:"
TargetGroupArn = Annotated[str, Field(pattern=_ELB + r"targetgroup/[A-Za-z0-9-]+/[0-9a-f]+$", max_length=2048)]
ListenerRuleArn = Annotated[
    str,
    Field(pattern=_ELB + r"listener-rule/app/[A-Za-z0-9-]+/[0-9a-f]+/[0-9a-f]+/[0-9a-f]+$", max_length=2048),
]


class TargetGroups(BothSlots):
    """The target group of each slot."""

    what: ClassVar[str] = "target groups"
    blue: TargetGroupArn
    green: TargetGroupArn


class AwsAlbPlace(RouterModel):
    """A rule of an Application Load Balancer, whose weights of target groups are moved, in tenths of a percent.

    It keeps no sessions and no record of requests: policies with a `session_header` are refused, `metrics` is needed.
    Credentials come from the usual chain of AWS.

    Attributes:
        rule: ARN of a rule of its own; a listener's default rule cannot be changed by its ARN.
        target_groups: The target group of each slot.
        region: Its region; None for the environment's.
        endpoint_url: URL of another API than Amazon's; for tests.
    """

    share_unit: ClassVar[int] = 10

    passes_openai: ClassVar[bool] = True
    left_to_its_operator: ClassVar[str] = (
        "every path but those of inference, health and metadata: its rule's conditions are yours; too large requests, "
        "and too many connections"
    )

    kind: Literal["aws_alb"]
    rule: ListenerRuleArn
    target_groups: TargetGroups
    region: Word | None = None
    endpoint_url: PlainUrl | None = None


ROUTER = remote(AwsAlbPlace, OnCall("llm_pipeline.adapters.aws.alb:AlbRouter"))


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
METRICS = Adapter(config=CloudWatchSource, open=OnCall(f"{_SOURCE}:open_source"), probe=OnCall(f"{_SOURCE}:probe"))

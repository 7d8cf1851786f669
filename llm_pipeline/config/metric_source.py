"""Where a canary's counts come from, for routers that keep no record of single requests, or beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SerializeAsAny, model_validator

from llm_pipeline.config.installed import or_installed
from llm_pipeline.config.model import ConfigModel, HostPath, PlainUrl, PositiveSeconds, VariableName, Word
from llm_pipeline.config.router_place import AwsAlbPlace, BothSlots, EnvoyPlace, ExistingEnvoyPlace, RouterPlace

Selector = Annotated[str, Field(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})?$", max_length=2048)]
"""Series of one counter in PromQL's words: its name, and labels in braces."""


class MetricSourceModel(ConfigModel):
    """What every kind of source is; those of other packages derive from it, too, and name a `kind`."""

    def problems(self, router: RouterPlace) -> Iterator[str]:  # noqa: ARG002 - most sources fit every router
        """Why it cannot count the requests that this router splits."""
        yield from ()

    def warnings(self, router: RouterPlace) -> Iterator[str]:  # noqa: ARG002
        """What `plan` says of it besides."""
        yield from ()


class EnvoySource(MetricSourceModel):
    """The statistics of the Envoy that splits the traffic: counts of requests and errors, no latencies."""

    kind: Literal["envoy"]

    def problems(self, router: RouterPlace) -> Iterator[str]:
        """Only an Envoy has them."""
        if not isinstance(router, EnvoyPlace | ExistingEnvoyPlace):
            yield f"metrics envoy are an Envoy's statistics, and the router is {router.kind}"


class SlotLabels(BothSlots):
    """The value of a label for each slot."""

    what: ClassVar[str] = "labels"
    blue: Word
    green: Word


class PrometheusSource(MetricSourceModel):
    """Counters in Prometheus, or in what answers its query API.

    Attributes:
        url: Its base URL.
        token_variable: Environment variable with a bearer token; None where it asks for none.
        ca_file: Certificates that its TLS certificate is checked against; None for the system's.
        slot_label: The label that tells the slots apart.
        slots: Its value for each slot. Series with any other value are an error: narrow the selectors.
        requests: Counter of all requests.
        errors: Counter of the requests that failed, e.g. `http_requests_total{code=~"4..|5.."}`.
        first_token: Histogram of the time to the first token of streamed answers, its `_bucket` series.
        end_to_end: Histogram of the time to the last byte, its `_bucket` series.
        bucket_unit: What `le` is in.
        total: Counter of the router's own requests; both slots together must be about as many.
        scrape_seconds: How often the series are scraped.
        stale_seconds: A newest sample that is older means that the source is down.
    """

    kind: Literal["prometheus"]
    url: PlainUrl
    token_variable: VariableName | None = None
    ca_file: HostPath | None = None
    slot_label: Word
    slots: SlotLabels
    requests: Selector
    errors: Selector
    first_token: Selector | None = None
    end_to_end: Selector | None = None
    bucket_unit: Literal["seconds", "milliseconds"] = "seconds"
    total: Selector | None = None
    scrape_seconds: PositiveSeconds = 15.0
    stale_seconds: PositiveSeconds = 60.0

    @model_validator(mode="after")
    def _stale_is_later(self) -> PrometheusSource:
        if self.stale_seconds < 2 * self.scrape_seconds:
            raise ValueError("stale_seconds must be at least twice scrape_seconds")
        return self


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


MetricSource = Annotated[
    EnvoySource | PrometheusSource | CloudWatchSource,
    Field(discriminator="kind"),
    SerializeAsAny(),
    or_installed("metric_sources"),
]
"""One of our kinds, or one that an installed package brings."""

"""The source of counts that a deployment names. Only the adapter that is used is imported."""

from __future__ import annotations

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.router import TrafficRouter
from llm_pipeline.canary.sources.arm_metrics import ArmMetrics
from llm_pipeline.config.metric_source import CloudWatchSource, EnvoySource, MetricSource, PrometheusSource
from llm_pipeline.config.router_place import AwsAlbPlace, RouterPlace


def open_source(source: MetricSource, place: RouterPlace, router: TrafficRouter) -> ArmMetrics:
    """The source, without asking it anything.

    Raises:
        ConfigError: It does not fit the router, or lacks something here.
    """
    match source:
        case PrometheusSource():
            from llm_pipeline.adapters.prometheus.source import PrometheusMetrics

            return PrometheusMetrics(source)
        case CloudWatchSource():
            from llm_pipeline.adapters.aws.cloudwatch import CloudWatchMetrics

            if not isinstance(place, AwsAlbPlace):
                raise ConfigError(f"CloudWatch counts the requests of a load balancer, the router is {place.kind}")
            return CloudWatchMetrics(source, place)
        case EnvoySource():
            from llm_pipeline.adapters.envoy.router import EnvoyRouter
            from llm_pipeline.adapters.envoy.statistics import EnvoyStatistics

            if not isinstance(router, EnvoyRouter):
                raise ConfigError(f"Envoy's statistics need an Envoy, the router is {place.kind}")
            return EnvoyStatistics(router)

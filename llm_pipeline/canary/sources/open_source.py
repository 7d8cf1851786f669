"""The source of counts that a deployment names. Only the adapter that is used is imported."""

from __future__ import annotations

from llm_pipeline.base.adapters import adapter
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.router import TrafficRouter
from llm_pipeline.canary.sources.arm_metrics import ArmMetrics, MetricSourceAdapter
from llm_pipeline.config.metric_source import MetricSource
from llm_pipeline.config.router_place import RouterPlace


def open_source(source: MetricSource, place: RouterPlace, router: TrafficRouter) -> ArmMetrics:
    """The source, without asking it anything.

    Raises:
        ConfigError: It does not fit the router, or lacks something here.
    """
    if problems := list(source.problems(place)):
        raise ConfigError("\n".join(problems))
    found: MetricSourceAdapter = adapter("metric_sources", source.kind)
    return found.open(source, place, router)

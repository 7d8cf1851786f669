"""The settings of the metric source `envoy`, and what opens it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace, ExistingEnvoyPlace
from llm_pipeline.base.adapters import Adapter
from llm_pipeline.config.metric_source import MetricSourceModel
from llm_pipeline.config.router_place import RouterPlace

if TYPE_CHECKING:
    from llm_pipeline.adapters.envoy.router import EnvoyRouter
    from llm_pipeline.adapters.envoy.statistics import EnvoyStatistics


class EnvoySource(MetricSourceModel):
    """The statistics of the Envoy that splits the traffic: counts of requests and errors, no latencies."""

    kind: Literal["envoy"]

    def problems(self, router: RouterPlace) -> Iterator[str]:
        """Only an Envoy has them."""
        if not isinstance(router, EnvoyPlace | ExistingEnvoyPlace):
            yield f"metrics envoy are an Envoy's statistics, and the router is {router.kind}"


def _open(_source: EnvoySource, _place: RouterPlace, router: EnvoyRouter) -> EnvoyStatistics:
    from llm_pipeline.adapters.envoy.statistics import EnvoyStatistics

    return EnvoyStatistics(router)


ADAPTER = Adapter(config=EnvoySource, open=_open)

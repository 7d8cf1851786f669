"""Where a canary's counts come from, for routers that keep no record of single requests, or beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import SerializeAsAny

from llm_pipeline.config.installed import OfKind
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.router_place import RouterPlace


class MetricSourceModel(ConfigModel):
    """What every kind of source is; each names its `kind`."""

    if TYPE_CHECKING:
        kind: str

    def problems(self, router: RouterPlace) -> Iterator[str]:  # noqa: ARG002 - most sources fit every router
        """Why it cannot count the requests that this router splits."""
        yield from ()

    def warnings(self, router: RouterPlace) -> Iterator[str]:  # noqa: ARG002
        """What `plan` says of it besides."""
        yield from ()


MetricSource = Annotated[MetricSourceModel, OfKind("metric_sources"), SerializeAsAny()]
"""Settings of an adapter: one of ours, or one that an installed package brings."""

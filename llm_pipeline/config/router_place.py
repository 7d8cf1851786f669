"""What splits the users' traffic of one target, an Envoy of ours or a gateway of a cluster, and where counts come from.

The kind decides; ports without a kind are an Envoy that is started on this host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, SerializeAsAny, model_validator

from llm_pipeline.config.installed import AdapterModel, OfKind
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.server_place import OpenAiSlot


class MetricSourceModel(AdapterModel):
    """What every kind of source is; each names its `kind`. `problems` and `warnings` are asked with the router."""

    if TYPE_CHECKING:
        kind: str


MetricSource = Annotated[MetricSourceModel, OfKind("metric_sources"), SerializeAsAny()]
"""Settings of an adapter: one of ours, or one that an installed package brings."""


class RouterModel(AdapterModel):
    """What every kind is; the class tells what its kind can do. Each names its `kind`.

    `problems` (beyond what the class variables say) and `warnings` are asked with the canary's policy.

    Attributes:
        share_unit: Basis points of the traffic that its weights are rounded to.
        logs_requests: It keeps a record of single requests that we can read.
        acts_within_seconds: Longest wait for its word that new weights are in force.
        passes_openai: Users may ask by OpenAI's API there; False where their paths are narrowed to Triton's.
        left_to_its_operator: What users have to be kept from there, which its API does not let us do.
    """

    share_unit: ClassVar[int] = 1
    logs_requests: ClassVar[bool] = False
    acts_within_seconds: ClassVar[float] = 60.0
    passes_openai: ClassVar[bool] = False
    left_to_its_operator: ClassVar[str] = ""

    if TYPE_CHECKING:
        kind: str

    @property
    def offers_triton(self) -> bool:
        """Whether users may ask by Triton's own routes, too."""
        return True

    def ports_here(self) -> tuple[int, ...]:
        """Ports that it takes on this host, where we start it; `stop` ends it then, too."""
        return ()

    def users_url(self) -> str:
        """Where users connect, without a path; empty where that is not in the configuration."""
        return ""

    def users_certificate(self) -> str | None:
        """PEM file that the users' port is checked against; None for plain text, or for the system's authorities."""
        return None

    def slot_problems(self, slots: Iterable[OpenAiSlot]) -> Iterator[str]:  # noqa: ARG002
        """Why it cannot reach servers with OpenAI's API."""
        yield from ()


class BothSlots(ConfigModel):
    """What a router or a metric source knows each slot of a place by: fields `blue` and `green`, which differ."""

    what: ClassVar[str]

    @model_validator(mode="after")
    def _are_two(self) -> Self:
        slots = self.model_dump()
        if slots["blue"] == slots["green"]:
            raise ValueError(f"blue and green must be two {self.what}")
        return self


def _envoy_by_default(value: Any) -> Any:
    return {"kind": "envoy", **value} if isinstance(value, dict) else value


RouterPlace = Annotated[RouterModel, OfKind("routers"), BeforeValidator(_envoy_by_default), SerializeAsAny()]
"""Settings of an adapter: ours, or one of an installed package; ports alone are an Envoy of this host."""

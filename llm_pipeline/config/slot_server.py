"""What serves in a production slot: a Triton on ports of this host, or a server with OpenAI's API that runs already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ValidationInfo, WrapValidator, field_validator

from llm_pipeline.config.endpoint import Endpoint, OpenAiEndpoint
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.server_ports import ServerPorts


class OpenAiSlot(ConfigModel):
    """A server with OpenAI's API (`vllm serve`) that somebody else starts with a release's checkpoint, and stops.

    Attributes:
        endpoint: Where it answers, as router and workers reach it, its model, and the variable with its API key. Users'
            requests keep their own key, so both slots must take the same keys.
    """

    kind: Literal["openai"]
    endpoint: OpenAiEndpoint

    @field_validator("endpoint")
    @classmethod
    def _has_no_path(cls, endpoint: Endpoint) -> Endpoint:
        if urlsplit(endpoint.url).path.strip("/"):
            raise ValueError("url must be that of the server, without a path such as /openai")
        return endpoint

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.endpoint.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _by_kind(value: Any, _: Any, info: ValidationInfo) -> Any:
    """Of a union's members each would be tried, and the errors of all be told."""
    if isinstance(value, OpenAiSlot) or (isinstance(value, Mapping) and "kind" in value):
        return OpenAiSlot.model_validate(value, context=info.context)
    return ServerPorts.model_validate(value, context=info.context)


SlotServer = Annotated[ServerPorts | OpenAiSlot, WrapValidator(_by_kind)]
"""By its ports alone a Triton of this host."""


def speaks_openai(slots: Mapping[Any, ServerPorts | OpenAiSlot]) -> bool:
    """Whether users of these slots ask by OpenAI's API."""
    return any(isinstance(server, OpenAiSlot) for server in slots.values())

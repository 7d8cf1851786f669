"""The settings of a staging server of kind `openai`, and what opens it."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.endpoint import OpenAiEndpoint
from llm_pipeline.config.server_place import ServerModel


class OpenAiServer(ServerModel):
    """A server with OpenAI's API (`vllm serve`) that somebody else starts with the candidate and stops.

    Nothing is loaded into it: it must serve the release's checkpoint under the name `openai_model` of the endpoint.

    Attributes:
        endpoint: Where it answers, its model, and the variable with its API key.
    """

    kind: Literal["openai"]
    endpoint: OpenAiEndpoint


_SERVER = "llm_pipeline.adapters.openai.server"
ADAPTER = Adapter(config=OpenAiServer, open=OnCall(f"{_SERVER}:OpenAiControl"), probe=OnCall(f"{_SERVER}:probe"))

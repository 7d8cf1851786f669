"""`endpoint.json`: what the process that speaks OpenAI's API needs to know of the model behind it."""

from __future__ import annotations

from pydantic import Field, JsonValue

from llm_pipeline.artifacts.model_rules import ChatFormat
from llm_pipeline.base.records import Frozen


class EndpointDescription(Frozen):
    """The content of `endpoint.json`.

    Attributes:
        model: The model's name at the API.
        release: What `system_fingerprint` says.
        chat: The checkpoint's chat format.
        chat_template_arguments: Handed to the template, unless a request says otherwise.
        sampling: Defaults of requests that do not say, by the names of inputs of `llm`.
        features: Optional inputs of `llm` that this engine takes, beyond those that all take.
        maximum_tokens_per_request: Of a prompt and its answer.
        maximum_sequences: Requests that the engine runs at once.
    """

    model: str
    release: str
    chat: ChatFormat = ChatFormat()
    chat_template_arguments: dict[str, JsonValue] = Field(default={})
    sampling: dict[str, int | float] = Field(default={})
    features: tuple[str, ...] = ()
    maximum_tokens_per_request: int
    maximum_sequences: int

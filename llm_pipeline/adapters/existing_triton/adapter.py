"""The settings of a staging server of kind `existing`, and what opens it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from llm_pipeline.base.adapters import Adapter, OnCall
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.model import PathText, PlainUrl
from llm_pipeline.config.server_place import ServerModel


class ExistingServer(ServerModel):
    """A Triton that runs already, with `--model-control-mode=explicit`: the candidate becomes a version of its own.

    Attributes:
        endpoint: Where it answers. Its headers open restricted APIs: `model-repository` must be allowed.
        control: The protocol that models are loaded through.
        repository: The model repository that it reads: a directory as this host sees it, or `s3://bucket/prefix`.
        link: Whether versions are links into the artifact store instead of copies: for a server that sees the store,
            or this host's cache of it, at the same path.
        s3_endpoint: URL of another S3 API than Amazon's.
        shared: Whether other versions of the model may be serving there. While the candidate is staged, requests that
            name no version get it: only for servers whose users name versions.
    """

    kind: Literal["existing"]
    endpoint: Endpoint
    control: Literal["http", "grpc"] = "http"
    repository: Annotated[PathText, Field(pattern=r"^(/|s3://[a-z0-9]).*")]
    link: bool = False
    s3_endpoint: PlainUrl | None = None
    shared: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> ExistingServer:
        if self.endpoint.openai_model is not None:
            raise ValueError("a server with OpenAI's API is of kind: openai")
        if self.control == "grpc" and self.endpoint.grpc is None:
            raise ValueError("control: grpc needs endpoint.grpc")
        if self.link and self.repository.startswith("s3://"):
            raise ValueError("there are no links in S3")
        return self


_SERVER = "llm_pipeline.adapters.existing_triton.server"
ADAPTER = Adapter(config=ExistingServer, open=OnCall(f"{_SERVER}:ExistingControl"), probe=OnCall(f"{_SERVER}:probe"))

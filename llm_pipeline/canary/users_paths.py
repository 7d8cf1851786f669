"""The paths and methods of a model's server that users may call; all others are for its operator.

A Triton server lets anyone who reaches it unload models, change logging and map shared memory. So routers pass on only
inference, health and metadata of the one model, by whole paths; model control stays on the server's own address. A
model's configuration and statistics reveal other users and the host's files, so they are not passed on either. Nor are
streams of gRPC: clients that leave some of them end Triton 2.51, which then frees a request twice.

Source: the protocol extensions in `docs/protocol` of triton-inference-server/server, and KServe's open inference
protocol, version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from llm_pipeline.artifacts.repository_layout import MODEL_NAME
from llm_pipeline.canary.router import ArmProtocol
from llm_pipeline.config.server_place import OpenAiSlot, SlotServer

_MODEL = f"/v2/models/{MODEL_NAME}"
_GRPC_SERVICE = "/inference.GRPCInferenceService/"

OPENAI_PATHS = ("/v1/models", "/v1/chat/completions", "/v1/completions")
"""What users may ask for by OpenAI's API, path by path, for routers whose APIs know no regular expressions."""


@dataclass(frozen=True)
class UsersApi:
    """What a router passes on of a protocol.

    Attributes:
        reads: Paths that are read with GET, as one regular expression (RE2) for a whole path.
        asks: Paths that are posted to, alike.
        health: Path that is asked whether a server is well.
        healthy_below: The first HTTP status that says it is not.
        second_opinions: Refusals that are asked of the other slot, too, while a release is on trial.
        json_levels: Lists and objects within each other that a posted body may have; None where the server bounds them.
        grpc_calls: Methods with one request and one answer.
    """

    reads: str
    asks: str
    health: str
    healthy_below: int
    second_opinions: tuple[HTTPStatus, ...]
    json_levels: int | None = None
    grpc_calls: tuple[str, ...] = ()


TRITON_API = UsersApi(
    reads=rf"/v2(/health/(live|ready))?|{_MODEL}(/ready)?",
    asks=rf"{_MODEL}/(generate|generate_stream)",  # `infer` over HTTP is not for many answers to a request
    health="/v2/health/ready",
    healthy_below=HTTPStatus.MULTIPLE_CHOICES,
    second_opinions=(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND),
    json_levels=32,  # it parses by recursion: 100,000 brackets end the whole server
    grpc_calls=(
        *(
            f"{_GRPC_SERVICE}{method}"
            for method in ("ModelInfer", "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
        ),
        "/grpc.health.v1.Health/Check",
    ),
)

OPENAI_API = UsersApi(
    reads="/health|/v1/models",
    asks="/v1/(chat/)?completions",
    health="/health",
    healthy_below=HTTPStatus.INTERNAL_SERVER_ERROR,  # not every such server has the path, or asks for no key there
    second_opinions=(
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.TOO_MANY_REQUESTS,
    ),
)
"""The answers of `/v1/responses` and `/v1/embeddings` are not read, so they are not passed on."""

OPENAI_BESIDE_TRITON = replace(OPENAI_API, reads="/v1/models(/.+)?", healthy_below=HTTPStatus.MULTIPLE_CHOICES)
"""What is started here, whose health is for its operator."""


def apis_of(slots: Mapping[Any, SlotServer], *, only_openai: bool = False) -> dict[ArmProtocol, UsersApi]:
    """What users of a place's slots may ask for, by the protocol of the servers that are asked; HTTP is the last."""
    if any(isinstance(server, OpenAiSlot) for server in slots.values()):
        return {"http": OPENAI_API}
    if only_openai:
        return {"http": OPENAI_BESIDE_TRITON}
    return {"grpc": TRITON_API, "openai": OPENAI_BESIDE_TRITON, "http": TRITON_API}

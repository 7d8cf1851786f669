"""What users may ask a model's server for, over HTTP and gRPC; everything else is for its operator.

A Triton server offers to anybody who reaches it to unload its models, to change its logging and to map shared memory.
So routers pass on inference, health and metadata of the one model, by whole paths, and nothing else: model control
stays on the server's own address. A model's configuration and statistics tell of other users and of the host's files;
they are not for users either.

Source: the protocol extensions in `docs/protocol` of triton-inference-server/server, and KServe's open inference
protocol, version 2.
"""

from __future__ import annotations

from llm_pipeline.artifacts.repository_layout import MODEL_NAME, MODEL_VERSION

_MODEL = f"/v2/models/{MODEL_NAME}"
_VERSION = r"(/versions/[0-9]+)?"
_GRPC_SERVICE = "/inference.GRPCInferenceService/"

ASKING = ("infer", "generate", "generate_stream")
"""What is posted to the model."""

HTTP_READS = rf"/v2(/health/(live|ready))?|{_MODEL}{_VERSION}(/ready)?"
"""Paths that are read with GET, as one regular expression (RE2) for a whole path."""

HTTP_ASKS = rf"{_MODEL}{_VERSION}/({'|'.join(ASKING)})"
"""Paths that are posted to, alike."""

HTTP_PATHS = (
    *("/v2", "/v2/health/live", "/v2/health/ready"),
    *(
        f"{_MODEL}{version}{verb}"
        for version in ("", f"/versions/{MODEL_VERSION}")
        for verb in ("", "/ready", *(f"/{asking}" for asking in ASKING))
    ),
)
"""The same one by one, for routers whose APIs know no regular expressions."""

GRPC_STREAMS = (f"{_GRPC_SERVICE}ModelStreamInfer",)
"""Methods that are a stream of requests and of answers."""

GRPC_CALLS = (
    *(
        f"{_GRPC_SERVICE}{method}"
        for method in ("ModelInfer", "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
    ),
    "/grpc.health.v1.Health/Check",
)
"""Methods with one request and one answer."""

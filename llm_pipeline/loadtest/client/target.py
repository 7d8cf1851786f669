"""Where a client process sends its requests, and their bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from llm_pipeline.loadtest.traffic import LoadRequest


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        host: Name or address.
        path: Of the model, e.g. `/v2/models/llm`.
        tls: Whether the connection is encrypted.
        ca_file: Certificates that the server's is checked against; None for the system's.
        headers: Sent with every request.
        timeout_seconds: Longest time for one whole answer, from its send.
    """

    host: str
    port: int
    path: str
    tls: bool = False
    ca_file: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 60.0

    def heads(self) -> tuple[bytes, bytes]:
        """What stands before the length of the body, in a request for a whole answer and in one for a stream."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        fields = {"Host": f"{host}:{self.port}", "Content-Type": "application/json", **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        whole, streamed = (
            f"POST {self.path}/{verb} HTTP/1.1\r\n{lines}Content-Length: ".encode("latin-1")
            for verb in ("generate", "generate_stream")
        )
        return whole, streamed


def request_body(request: LoadRequest) -> bytes:
    """The JSON body of `generate` and `generate_stream`.

    A priority goes into `parameters`, Triton's place for it in `infer`. Its generate extension hands that to the model
    as a parameter of the request and does not order the queue by it (server's http_server.cc: HandleGenerate, unlike
    HandleInfer, never calls TRITONSERVER_InferenceRequestSetPriorityUInt64).
    """
    body: dict[str, Any] = {
        "text_input": request.prompt,
        "max_tokens": request.maximum_tokens,
        "temperature": 0.0,
        "ignore_eos": request.ignore_eos,
        "stream": request.stream,
    }
    if request.priority:
        body["parameters"] = {"priority": request.priority}
    return json.dumps(body).encode()

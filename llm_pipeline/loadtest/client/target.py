"""Where a client process sends its requests, and their bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from llm_pipeline.loadtest.traffic import LoadRequest
from llm_pipeline.serving.protocols import ServingProtocol, protocol_named


@dataclass(frozen=True)
class Target:
    """Where requests go.

    Attributes:
        host: Name or address.
        path: What comes before the protocol's own paths; empty for nothing.
        openai_model: Name of the model at a server with OpenAI's API; None for a Triton.
        tls: Whether the connection is encrypted.
        ca_file: Certificates that the server's is checked against; None for the system's.
        headers: Sent with every request.
        timeout_seconds: Longest time for one whole answer, from its send.
    """

    host: str
    port: int
    path: str
    openai_model: str | None = None
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
            f"POST {self.path}{path} HTTP/1.1\r\n{lines}Content-Length: ".encode("latin-1")
            for path in (self.protocol.whole_path, self.protocol.stream_path)
        )
        return whole, streamed

    @property
    def protocol(self) -> ServingProtocol:
        """How the model is asked."""
        return protocol_named(self.openai_model)


def request_body(request: LoadRequest, protocol: ServingProtocol) -> bytes:
    """The JSON body of a request."""
    body = protocol.body(
        request.prompt,
        request.maximum_tokens,
        stream=request.stream,
        ignore_eos=request.ignore_eos,
        priority=request.priority,
    )
    return json.dumps(body).encode()

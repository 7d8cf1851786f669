"""Loopback ports that nobody listens on, below those that the kernel gives to connections."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from llm_pipeline.config.server_place import ServerPorts


def free_ports(count: int) -> list[int]:
    """So many, each another."""
    with ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            port = random.randrange(25_000, 32_500)  # noqa: S311 - no secret; lower ones are written into tests
            with suppress(OSError):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
        return found


def free_port() -> int:
    """A single one."""
    return free_ports(1)[0]


def server_ports(*readable: Path) -> ServerPorts:
    """Those of a server, which may read these paths, too."""
    http, grpc, metrics, openai = free_ports(4)
    return ServerPorts(http=http, grpc=grpc, metrics=metrics, openai=openai, readable=tuple(map(str, readable)))

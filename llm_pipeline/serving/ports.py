"""Loopback ports: whether they are free, and who holds them when they are not."""

from __future__ import annotations

import errno
import socket

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.server_place import ServerPorts

LOOPBACK = "127.0.0.1"


def loopback_endpoint(ports: ServerPorts, own_metrics: str = "") -> Endpoint:
    """The endpoint of a server on loopback ports of this host.

    Args:
        ports: The server's ports.
        own_metrics: Path of the metrics on the port of OpenAI's API, of a server that is no Triton.
    """
    url = f"http://{LOOPBACK}:{ports.openai}"
    metrics = f"{url}{own_metrics}" if own_metrics else f"http://{LOOPBACK}:{ports.metrics}/metrics"
    return Endpoint(url=url, metrics_url=metrics)


def require_free(ports: ServerPorts, *, what: str) -> None:
    """Refuse to start a server whose ports are taken.

    Raises:
        ConfigError: A port is in use; the message names the process that listens on it.
    """
    for role, port in ports.by_name().items():
        require_free_port(port, role=role, what=what)


def require_free_port(port: int, *, role: str, what: str) -> None:
    """Refuse to start something whose port is taken.

    Args:
        port: The loopback port.
        role: What the port is for, e.g. "http".
        what: What is about to start.

    Raises:
        ConfigError: The port is in use; the message names the process that listens on it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            hint = "stop that process or give this server other ports in the deployment file"
            raise ConfigError(f"{role} port {port} is in use by {_owner(port)}", where=what, hint=hint) from None


def _owner(port: int) -> str:
    """Who listens on a TCP port of this host; other users' processes, and those of other containers, are not seen."""
    import psutil  # here: most ports are free, and many import this module for less

    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                name = psutil.Process(connection.pid).name()
            except psutil.Error:
                name = "unknown"
            return f"pid {connection.pid} ({name})"
    return "a process that is not visible from here"

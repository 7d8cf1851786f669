"""Where the server that a python model runs in answers HTTP: read from its command line, as Triton has no API for it.

This file is copied into a model repository beside `engine_call.py` and stands alone there: standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

DEFAULT_PORT = 8000


class ServerAddress(NamedTuple):
    """Where the server of this process answers HTTP, and the header that opens inference if that is restricted."""

    host: str
    port: int
    headers: dict[str, str]

    @staticmethod
    def of_arguments(arguments: Sequence[str]) -> ServerAddress:
        """Read a server's command line; raises ValueError if it has no HTTP endpoint."""
        options = _options(arguments)
        if options.get("allow-http", ["true"])[-1].lower() in ("false", "0"):
            raise ValueError("the engine is called over the server's HTTP: start it without --allow-http=false")
        host = options.get("http-address", [""])[-1]
        headers = {}
        for restriction in options.get("http-restricted-api", []):
            apis, _, header = restriction.partition(":")
            if "inference" in apis.split(","):
                name, _, value = header.partition("=")
                headers[name] = value
        port = int(options.get("http-port", [DEFAULT_PORT])[-1])
        return ServerAddress("127.0.0.1" if host in ("", "0.0.0.0") else host, port, headers)  # noqa: S104 - not bound

    @staticmethod
    def of_parent() -> ServerAddress:
        """The address of the server that started this process."""
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace")
        return ServerAddress.of_arguments(command.split("\0"))


def _options(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Values by option, of `--option=value` and `--option value`."""
    options: dict[str, list[str]] = {}
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            options.setdefault(name, []).append(value if equals else following)
    return options

"""A service of this machine that keeps the messages it is sent: Apprise speaks to it as `json://`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from faulty_api import Server, handler


@dataclass
class People:
    """Who was told what.

    Attributes:
        url: Apprise's URL of them.
        messages: As `title`, `message` and `type` (`info`, `warning` or `failure`).
        refuse: Statuses that the next requests get; then 200.
    """

    url: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    refuse: list[int] = field(default_factory=list)

    @property
    def titles(self) -> list[str]:
        return [message["title"] for message in self.messages]


@contextlib.contextmanager
def people() -> Iterator[People]:
    told = People()

    def respond(_method: str, _path: str, body: dict[str, str] | None) -> tuple[int, bytes]:
        status = told.refuse.pop(0) if told.refuse else 200
        if status == 200:
            told.messages.append(body)
        return status, b"{}"

    server = Server(("127.0.0.1", 0), handler(respond, vars))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        told.url = f"json://127.0.0.1:{server.server_address[1]}/top-secret"
        yield told
    finally:
        server.shutdown()
        server.server_close()

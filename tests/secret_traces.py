"""Where a secret can be found again: in files, in whatever form it was written, and in what `/proc` shows of us."""

from __future__ import annotations

import base64
import html
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

_POLL_SECONDS = 0.01


def forms(token: str) -> dict[str, bytes]:
    """The ways in which text that holds the token may show it; base64 in all three alignments of its neighbours."""
    data = token.encode()
    written = {
        "plain": token,
        "percent-encoded": quote(token),
        "percent-encoded, slashes too": quote(token, safe=""),
        "JSON": json.dumps(token)[1:-1],
        "JSON in JSON": json.dumps(json.dumps(token))[3:-3],
        "JSON, ASCII only, in Python": repr(json.dumps(token)[1:-1])[1:-1],
        "HTML": html.escape(token),
        "hexadecimal": data.hex(),
    }
    for before in range(3):
        first, last = (0, 2, 3)[before], -3  # what neighbours change is left out
        for name, encode in (("base64", base64.b64encode), ("base64 for URLs", base64.urlsafe_b64encode)):
            whole = encode(b"\0" * before + data).rstrip(b"=").decode()
            written[f"{name}, {before} bytes after its start"] = whole[first:last]
    return {name: text.encode() for name, text in written.items()}


def traces(data: bytes, token: str) -> list[str]:
    """The forms in which the data hold the token."""
    return [name for name, written in forms(token).items() if written in data]


def search(root: Path, token: str) -> list[str]:
    """Every file below a directory that shows the token in its name or its bytes, with the form it has there."""
    found = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        found += [f"{name}: {form}, in the name" for form in traces(name.encode(), token)]
        if path.is_file() and not path.is_symlink():
            found += [f"{name}: {form}" for form in traces(path.read_bytes(), token)]
    return found


@dataclass(frozen=True)
class Seen:
    """What `/proc` showed of one process: its command line and its environment."""

    command: bytes
    environment: bytes


@dataclass
class ProcessWatch:
    """Reads command line and environment of every process below this one, again and again, while its block runs."""

    seen: set[Seen] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for process in _below(Path("/proc/self")):
                try:
                    command, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                if command and environment:  # neither is there in the middle of an exec
                    self.seen.add(Seen(command, environment))

    def commands_with(self, token: str) -> list[str]:
        """Command lines that show the token."""
        return [_readable(seen.command) for seen in self.seen if traces(seen.command, token)]

    def environments_with(self, token: str) -> list[str]:
        """Command lines of the processes whose environment holds the token."""
        return sorted({_readable(seen.command) for seen in self.seen if traces(seen.environment, token)})


def _below(process: Path) -> Iterator[Path]:
    for task in _listed(process / "task"):
        try:
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            yield Path("/proc", child)
            yield from _below(Path("/proc", child))


def _listed(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _readable(command: bytes) -> str:
    return command.replace(b"\0", b" ").decode(errors="replace").strip()

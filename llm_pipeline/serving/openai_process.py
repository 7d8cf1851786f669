"""The process beside a slot's Triton that speaks OpenAI's API to users: started, found and stopped by a record.

It is started while Triton loads, and is confined like it. Its program is `llm_pipeline.endpoint`.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from http import HTTPStatus
from pathlib import Path

from llm_pipeline.artifacts.repository_layout import MODEL_NAME, MODEL_VERSION
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.confinement import confined
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.serving.endpoint_access import served_name
from llm_pipeline.serving.ports import LOOPBACK

_RECORD, _LOG = "openai.process.json", "openai.log"
_INHERITED = ("LANG", "LC_ALL", "PATH", "TZ")
_GRACE_SECONDS = 3.0
_CORES_PER_WORKER, _MOST_WORKERS = 4, 4
_ANSWER_SECONDS = 2.0
_SHOWN_LINES = 10


def start_openai(state: Path, ports: ServerPorts, repository: Path, digest: str) -> None:
    """Start it for the server of a slot.

    Args:
        state: The slot's directory, with the server's view of the repository.
        ports: The server's ports.
        repository: What the view links to.
        digest: Of the repository.

    Raises:
        ConfigError: It cannot be started.
    """
    stop_openai(state)  # one that was killed leaves its workers, which hold the port
    workers = max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) // _CORES_PER_WORKER))
    command = [
        *(sys.executable, "-P", "-m", "llm_pipeline.endpoint"),
        *("--port", str(ports.openai), "--triton", f"{LOOPBACK}:{ports.http}"),
        *("--model", str(state / "repository" / MODEL_NAME / str(MODEL_VERSION)), "--root", served_name(digest)),
        *("--workers", str(workers)),
    ]
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {"HOME": str(state)}
    log = state / _LOG
    if log.exists():
        log.replace(state / "openai.previous.log")
    start = partial(
        detached.start, f"endpoint {state.name}", command, state / _RECORD, log=log, environment=environment
    )
    confined(start, (state, repository), network=True)


def openai_has_ended(state: Path) -> bool:
    """Whether the process of a slot is gone without having been stopped."""
    process = detached.load(state / _RECORD)
    return process is not None and not process.alive


def openai_is_ready(ports: ServerPorts) -> bool:
    """Whether the process answers, and the model behind it is ready."""
    try:
        return call(f"http://{LOOPBACK}:{ports.openai}/health", seconds=_ANSWER_SECONDS).status == HTTPStatus.OK
    except OSError:
        return False


def openai_failure(state: Path) -> str:
    """The last lines of its log."""
    return "\n".join((state / _LOG).read_text(errors="replace").splitlines()[-_SHOWN_LINES:])


def stop_openai(state: Path) -> None:
    """Stop it; answers that are being given have a moment. Without one there is nothing to do."""
    if process := detached.load(state / _RECORD):
        detached.stop(process, grace_seconds=_GRACE_SECONDS)
    (state / _RECORD).unlink(missing_ok=True)

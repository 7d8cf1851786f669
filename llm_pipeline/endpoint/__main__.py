"""Starts the endpoint; ends on SIGTERM once running answers are complete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import uvicorn
from uvicorn.supervisors import Multiprocess

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.logging import write_json_lines
from llm_pipeline.endpoint.app import Settings, application

DRAIN_SECONDS = 30
WORKER_SECONDS = 60
"""A worker that says nothing for so long is replaced; a busy host takes long to start one."""

KEEP_ALIVE_SECONDS = 75
"""Longer than the idle time-out of a proxy's connections, so that none is closed while a request is on its way."""


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM.

    Raises:
        IntegrityError: There is no `endpoint.json`, or it is not one.
        TemplateError: The chat template is not written in Jinja.
    """
    parser = ArgumentParser(prog="python -m llm_pipeline.endpoint", description="OpenAI's API for Triton.")
    parser.add_argument("--model", type=Path, required=True, help="version directory of the model llm")
    parser.add_argument("--triton", required=True, help="host and port of Triton's HTTP endpoint")
    parser.add_argument("--root", default="", help="what the model was loaded from, for the list of models")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    settings = Settings(options.model, options.triton, options.root)
    application(settings)  # here, too: a worker that cannot have one would be started again for ever
    config = uvicorn.Config(
        partial(application, settings),
        factory=True,
        host=options.host,
        port=options.port,
        workers=options.workers,
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_worker_healthcheck=WORKER_SECONDS,
    )
    write_json_lines()
    Multiprocess(config, sockets=[config.bind_socket()]).run()  # also of one worker: it is started again if it dies
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

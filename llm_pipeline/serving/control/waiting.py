"""Waiting for a server: until its model takes requests, and until no request is in flight."""

from __future__ import annotations

import time
from collections.abc import Callable

from llm_pipeline.artifacts.repository_layout import MODEL_NAME, MODEL_VERSION
from llm_pipeline.base.errors import Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.control.model_control import open_model_control
from llm_pipeline.serving.endpoint_access import active_requests

_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 5.0
_SILENT_SECONDS = 2.0
"""Longest gap in the metrics during a drain, so that a single missing answer does not end it."""


def await_model(endpoint: Endpoint, wait_seconds: float, check: Callable[[], None]) -> float:
    """Wait until an endpoint's model takes requests; returns the seconds that it took.

    Args:
        endpoint: Where the server will answer.
        wait_seconds: Longest wait.
        check: Called before each wait; raises if the model cannot become ready any more.

    Raises:
        Transient: The model was not loaded in time.
    """
    control = open_model_control(endpoint, timeout_seconds=_ANSWER_SECONDS)
    started = time.monotonic()
    while not _is_ready(lambda: control.is_ready(MODEL_NAME, MODEL_VERSION)):
        check()
        if time.monotonic() - started > wait_seconds:
            raise Transient(f"the model was not loaded within {wait_seconds:g} s", where=endpoint.url)
        time.sleep(_POLL_SECONDS)
    return round(time.monotonic() - started, 3)


def await_no_requests(endpoint: Endpoint, seconds: float) -> bool:
    """Wait up to `seconds` until no request is in flight; returns whether none is. False without metrics."""
    reported_at = started = time.monotonic()
    while (active := active_requests(endpoint)) != 0:
        now = time.monotonic()
        reported_at = reported_at if active is None else now
        if now - started >= seconds or now - reported_at >= _SILENT_SECONDS or endpoint.metrics_url is None:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_ready(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except Transient:
        return False

"""What a client needs to access an endpoint (TLS), which repository it serves, whether it is ready, and its metrics.

Our own servers state their repository's digest as the root of their model (`GET /v1/models`). Somebody else's must have
the model that the endpoint names, and the golden outputs show whether that is the release's model.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from llm_pipeline.base.bounded_http import HttpAnswer, call
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.completions import MODELS_PATH, Metrics, header_secrets, refusal_text, shown, without
from llm_pipeline.serving.metrics_page import parse_metrics, whole_sum


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """The context of TLS connections to an endpoint; None where its URL has no TLS.

    Raises:
        ConfigError: The file of certificates cannot be read.
    """
    if not endpoint.url.startswith("https://"):
        return None
    try:
        return ssl.create_default_context(cafile=endpoint.ca_file)
    except OSError as error:  # which an SSLError is
        where = endpoint.ca_file or endpoint.url
        raise ConfigError(f"ca_file: {error}", where=where, hint="name a PEM file") from error


def active_requests(endpoint: Endpoint, *, seconds: float = 5.0) -> int | None:
    """Requests that wait or run, from the server's own metrics; None if they cannot be read or do not tell.

    Args:
        endpoint: The server's addresses, headers and certificates.
        seconds: Longest wait for the metrics.
    """
    if endpoint.metrics_url is None:
        return None
    try:
        headers, tls = endpoint.headers(), tls_context(endpoint)
        answer = call(endpoint.metrics_url, seconds=seconds, headers=headers, tls=tls)
    except (OSError, ValueError):
        return None
    page = parse_metrics(answer.text) if answer.status == HTTPStatus.OK else {}
    return whole_sum(page, *Metrics.active)


T = TypeVar("T")
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 1.0
_LONGEST_ANSWER_BYTES = 4 * 1024 * 1024
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE,
         HTTPStatus.GATEWAY_TIMEOUT)  # fmt: skip


def served_name(digest: str) -> str:
    """What a server of this repository calls itself, and the root of its model."""
    return f"llm_pipeline:{digest}"


def require_served(endpoint: Endpoint, digest: str) -> None:
    """Check that an endpoint serves the repository of this digest, before anything is measured on it.

    Raises:
        IntegrityError: One of ours serves another repository; and as `_card`.
        Transient, ConfigError: As `_card`.
    """
    card = _card(endpoint)
    root = card.get("root") or card["id"]  # `trtllm-serve` has the one as the other
    if endpoint.openai_model is None and root != served_name(digest):
        raise IntegrityError(
            f"the server there has {root!r}, not repository {digest[:12]}",
            where=endpoint.url,
            hint="run the staging stage of this release again",
        )


def require_model(endpoint: Endpoint) -> int | None:
    """Check that the server has the endpoint's model.

    Returns:
        Tokens that one of its requests may have; None where the server does not say: vLLM, SGLang and ours have
        `max_model_len`, llama.cpp's server `n_ctx` under `meta`; gateways pass on neither.

    Raises: As `_card`.
    """
    card = _card(endpoint)
    meta = card.get("meta")
    length = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return length if isinstance(length, int) else None


def model_root(endpoint: Endpoint) -> str | None:
    """What the server says that the endpoint's model was loaded from; None where it does not say.

    Raises: As `_card`.
    """
    root = _card(endpoint).get("root")
    return root if isinstance(root, str) else None


def once_it_answers(ask: Callable[[Endpoint], T], endpoint: Endpoint, wait_seconds: float) -> T:
    """What `ask` says of an endpoint's model, asked again and again while nobody answers.

    Raises:
        Transient: Nobody answered for so long.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return ask(endpoint)
        except Transient:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_SECONDS)


def await_model(endpoint: Endpoint, wait_seconds: float, check: Callable[[], None]) -> None:
    """Wait until an endpoint's model takes requests.

    Args:
        endpoint: Where the server will answer.
        wait_seconds: Longest wait.
        check: Called before it is asked; raises if the model cannot become ready any more.

    Raises:
        Transient: The model was not loaded in time.
        ConfigError: A header's variable is not set, the certificates cannot be read, or access is denied.
    """

    def loaded(endpoint: Endpoint) -> None:
        check()
        answer, said = answer_at(endpoint, "/health")
        if answer.status != HTTPStatus.OK:
            raise Transient(f"HTTP {answer.status}: {said}")

    try:
        once_it_answers(loaded, endpoint, wait_seconds)
    except Transient as error:
        words = f"the model was not loaded within {wait_seconds:g} s: {error.message}"
        raise Transient(words, where=endpoint.url) from None


_SILENT_SECONDS, _DRAIN_POLL_SECONDS = 2.0, 0.1
"""Longest gap in the metrics during a drain, so that a single missing answer does not end it."""


def await_no_requests(endpoint: Endpoint, seconds: float) -> bool:
    """Wait up to `seconds` until no request is in flight; returns whether none is. False without metrics."""
    reported_at = started = time.monotonic()
    while (active := active_requests(endpoint)) != 0:
        now = time.monotonic()
        reported_at = reported_at if active is None else now
        if now - started >= seconds or now - reported_at >= _SILENT_SECONDS or endpoint.metrics_url is None:
            return False
        time.sleep(_DRAIN_POLL_SECONDS)
    return True


def answer_at(endpoint: Endpoint, path: str) -> tuple[HttpAnswer, str]:
    """The server's answer, and what it says if that is a refusal: one short line without the secrets that were sent.

    Raises:
        Transient: Nobody answers there.
        ConfigError: It does not let us in, a header's variable is not set, or the certificates cannot be read.
    """
    url = f"{endpoint.url.rstrip('/')}{path}"
    headers, tls = endpoint.headers(), tls_context(endpoint)
    secrets = header_secrets(headers)
    try:
        answer = call(url, seconds=_ANSWER_SECONDS, headers=headers, tls=tls, longest_bytes=_LONGEST_ANSWER_BYTES)
    except (OSError, ValueError) as error:
        said = one_line(without(str(error), secrets))
        raise Transient(f"no server answers: {said}", where=url, hint="is it running, and is this its URL?") from None
    said = one_line(shown(refusal_text(answer.body), secrets))
    if answer.status in _DENIED:
        hint = "name its variable as api_key_variable of the endpoint, and set it for the workers"
        raise ConfigError(f"the server refuses access: HTTP {answer.status}: {said}", where=url, hint=hint)
    return answer, said


def _card(endpoint: Endpoint) -> dict[str, Any]:
    """What the server says of the endpoint's model: the only one, where it names none.

    Raises:
        Transient, ConfigError: As `answer_at`; Transient also where it is not ready.
        IntegrityError: It is not a server with OpenAI's API, or has other models.
    """
    url = f"{endpoint.url.rstrip('/')}{MODELS_PATH}"
    answer, said = answer_at(endpoint, MODELS_PATH)
    if answer.status in _BUSY:
        raise Transient(f"the server is not ready: HTTP {answer.status}: {said}", where=url)
    models: dict[str, dict[str, Any]] | None = None
    if answer.status == HTTPStatus.OK:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            models = {str(card["id"]): dict(card) for card in json.loads(answer.body)["data"]}
    if models is None:
        raise IntegrityError(
            f"no list of models as in OpenAI's API: HTTP {answer.status}: {said}",
            where=url,
            hint="url is what comes before /v1, without redirects; some gateways say so to a wrong key",
        )
    if endpoint.openai_model is None and len(models) == 1:
        return next(iter(models.values()))
    if endpoint.openai_model not in models:
        raise IntegrityError(
            f"the server has the models {', '.join(sorted(models)) or 'none'}, not {endpoint.openai_model or 'one'}",
            where=url,
            hint="name one of them as openai_model, or serve the release under that name",
        )
    return models[endpoint.openai_model]

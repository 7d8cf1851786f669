"""Answers of S3 that are whole: asked for again where a connection broke, and listings that end where they say."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, TypeVar

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.timed_connection import AnswerTooLong

ATTEMPTS = 8
"""Of one request, and of a transfer that gets nowhere; botocore's own of requests without an answer come below it."""

_BACKOFF_UNIT_SECONDS = 0.1
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_TRUNCATED = "IsTruncated"

T = TypeVar("T")


class Incomplete(Transient):
    """An answer that says less than such answers say."""


def back_off(attempt: int) -> None:
    """Wait before the attempt after this one (0 is the first): exponential, with full jitter."""
    time.sleep(random.random() * _BACKOFF_UNIT_SECONDS * 2**attempt)  # noqa: S311 - jitter, not a secret


def failed_requests() -> tuple[type[Exception], ...]:
    """All that a request, or reading its body, raises.

    botocore reads the body of a refusal (`404` to a GET) outside of its own error handling: a connection that is reset
    there raises urllib3's error, and what arrived of the body fails to parse.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    return (BotoCoreError, ClientError, ResponseParserError, HTTPError, ConnectionError)


def until_whole(request: Callable[[], T]) -> T:
    """Send a request; botocore retries what it knows, this retries broken answers and conflicts (409).

    Raises:
        Exception: One of `failed_requests`, that of the last attempt.
        Incomplete: As the last attempt.
    """
    retried: tuple[type[Exception], ...] = (Incomplete, *failed_requests())
    for attempt in range(ATTEMPTS - 1):
        try:
            return request()
        except retried as error:
            if not _may_pass(error):
                raise
        back_off(attempt)
    return request()


def whole_body(answer: Mapping[str, Any], longest_bytes: int) -> bytes:
    """The body of a small object.

    Raises:
        AnswerTooLong: It has more bytes than that.
        Exception: One of `failed_requests`.
    """
    from botocore.exceptions import ReadTimeoutError, ResponseStreamingError

    with closing(answer["Body"]) as body:
        try:
            data: bytes = body.read(longest_bytes + 1)
            if len(data) > longest_bytes:
                raise AnswerTooLong(f"the answer has more than {longest_bytes} bytes")
            body.read(1)  # at its end: botocore compares the length with the one that was announced
        except ReadTimeoutError as error:  # botocore asks again after those before a body, not after this one
            raise ResponseStreamingError(error=error) from error
        return data


def following_page(page: Mapping[str, Any], names: Mapping[str, str], marker: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that ask for the next page of a listing; empty after the last.

    Args:
        page: The answer.
        names: Of the parameters, and of the fields of an answer that hold them.
        marker: The parameters of this page.

    Raises:
        Incomplete: The page does not say whether it is the last, or not how to go on.
    """
    if _TRUNCATED not in page:
        raise Incomplete("a listing does not say whether it is complete", hint="run it again")
    if not page[_TRUNCATED]:
        return {}
    following = {parameter: page.get(field) for parameter, field in names.items()}
    if None in following.values() or following == marker:
        raise Incomplete("a listing is cut short, and does not say how to continue", hint="run it again")
    return following


def _may_pass(error: Exception) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError

    if isinstance(error, ClientError):
        return error.response.get("Error", {}).get("Code") in _CONFLICTS
    return not isinstance(error, BotoCoreError) or isinstance(error, (IncompleteReadError, ResponseStreamingError))

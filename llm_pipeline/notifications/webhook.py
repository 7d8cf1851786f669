"""A Slack-compatible webhook: Slack, Mattermost, Rocket.Chat and others take the same JSON."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http import HTTPStatus

from llm_pipeline.notifications.channels import NotSent, Refused
from llm_pipeline.notifications.message import Message

TIMEOUT_SECONDS = 10.0
_MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


@dataclass(frozen=True)
class Webhook:
    """Posts messages to a URL that is a secret: no error, log or repr of ours shows any part of it."""

    url: str = field(repr=False)
    name: str = "webhook"

    def send(self, message: Message) -> None:
        """Post it; see `Channel`."""
        if not self.url.startswith(("https://", "http://")):
            raise Refused("the webhook's URL is not one of http or https", hint="correct the variable or connection")
        body = json.dumps(message.slack()).encode()
        try:
            request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})  # noqa: S310
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_SECONDS):
                return
        except urllib.error.HTTPError as error:
            raise _answered(error.code) from None
        except (OSError, http.client.HTTPException, ValueError) as error:  # their texts may hold the URL
            raise NotSent(f"the webhook cannot be reached: {_kind(error)}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A webhook that moves is configured anew: what is behind another address is not asked."""

    def redirect_request(self, *_args: object) -> None:
        """Leave the answer as it is."""


def _answered(status: int) -> NotSent | Refused:
    told = f"the webhook answered {status}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _MAY_PASS:
        return NotSent(told)
    return Refused(told, hint="is its URL still right?")


def _kind(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return type(reason if isinstance(reason, Exception) else error).__name__

"""Which repository an endpoint serves: its server's name carries the repository's digest (`GET /v2`)."""

from __future__ import annotations

import aiohttp

from llm_pipeline.errors import IntegrityError, Transient

_PREFIX = "llm_pipeline:"


def served_name(digest: str) -> str:
    """The name that a server of this repository is started with."""
    return f"{_PREFIX}{digest}"


async def require_served(endpoint: str, digest: str) -> None:
    """Check that the server at `endpoint` serves the repository of this digest, before anything is measured on it.

    Raises:
        IntegrityError: It serves another one, or does not tell.
        Transient: Nobody answers there.
    """
    url = f"{endpoint.rstrip('/')}/v2"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10.0)) as session,
            session.get(url) as answer,
        ):
            name = str((await answer.json(content_type=None))["name"])
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Transient(f"no server answers: {error}", where=url, hint="run the staging stage first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError("this is not a Triton server", where=url) from error
    if name != served_name(digest):
        raise IntegrityError(
            f"the server there is {name!r}, not one of repository {digest[:12]}",
            where=url,
            hint="run the staging stage of this release again",
        )

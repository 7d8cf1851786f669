"""Credentials in text: what has the form of one is replaced by `***` before people or logs see the text.

A presigned URL is a credential: whoever reads it can fetch the object until it expires. So every query string goes,
also the harmless ones: which names carry a signature differs between S3, CloudFront, Google Cloud and Azure.
All of it takes time in proportion to the text's length, whatever the text is.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"\S+")
_HOST_FOLLOWS = re.compile(r":(?:\\?/){2}|%(?:25)*3A%(?:25)*2F%(?:25)*2F", re.IGNORECASE)
_AUTHORITY_ENDS = re.compile(r"[/?#\"<>]")
_QUERY_OF_URL = re.compile(r"([?#])([^\s\"<>]+)")
_QUERY = re.compile(
    r"(?:\?|%(?:25)*3F)(?=[^\s\"<>=%?]{1,200}(?:=|%(?:25)*3D))[^\s\"<>]*"
    # a query string broken over lines: what follows is a long word, or one with the signs of a query string
    r"(?:\r?\n[ \t|]*(?:[^\s\"<>]{20,}|[^\s\"<>]{0,19}[=&%][^\s\"<>]*))*",
    re.IGNORECASE,
)
_PARAMETER = re.compile(
    r"((?<![\w-])(?:X-(?:Amz|Goog)-[A-Za-z-]+|AWSAccessKeyId|GoogleAccessId|Key-Pair-Id|access_token|client_secret"
    r"|refresh_token|password)=|(?<=[&;])(?:Expires|Policy|Signature|sig|token)=)[^\s\"'<>&]+",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"((?<!\w)authorization[\"']?\s{0,4}[:=,]\s{0,4}(?:b?[\"'])?)(?:(?:basic|bearer|token)\s{1,4})?[^\s\"',]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?<!\w)(bearer)\s{1,4}[\w.~+/=-]{16,}", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"(?<![A-Za-z0-9])(hf_)[A-Za-z0-9]{16,}")


def without_credentials(text: str) -> str:
    """The text, with `***` for user and password of a URL, for query strings, and for bearer and hub tokens."""
    text = _QUERY.sub("?***", text)
    text = _WORD.sub(_without_secrets_of_url, text)
    text = _PARAMETER.sub(r"\1***", text)
    text = _HEADER.sub(r"\1***", text)
    text = _BEARER.sub(r"\1 ***", text)
    return _HUB_TOKEN.sub(r"\1***", text)


def _without_secrets_of_url(match: re.Match[str]) -> str:
    word = match[0]
    scheme = _HOST_FOLLOWS.search(word)
    if scheme is None:
        return word
    before, rest = word[: scheme.end()], word[scheme.end() :]
    end = _AUTHORITY_ENDS.search(rest)
    authority = rest[: end.start()] if end else rest
    at = authority.rfind("@") if "@" in authority else rest.find("@")  # people do not encode a password's `/`
    if at >= 0:
        rest = "***" + rest[at:]
    return before + _QUERY_OF_URL.sub(_without_query, rest)


def _without_query(match: re.Match[str]) -> str:
    kept = match[1] == "#" and "=" not in match[2]  # a fragment names a place; a token in one has a name
    return match[0] if kept else f"{match[1]}***"

"""The connection to a hub: where it is, who we are, and what its errors mean to us."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from huggingface_hub import HfApi, errors, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.constants import HF_HUB_ETAG_TIMEOUT
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, parse_ratelimit_headers

from llm_pipeline import __version__
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError
from llm_pipeline.base.logging import quiet_third_parties
from llm_pipeline.hub.source import PUBLIC_ENDPOINT, SourceRefused, SourceUnavailable, hub_address

RepositoryKind = Literal["model", "dataset"]

_LIBRARY_NAME = "llm-pipeline"
_UNPACKED = {"Accept-Encoding": "identity"}
"""Header of every request: what comes is hashed as it is stored."""

TIMEOUT_SECONDS = max(30, HF_HUB_ETAG_TIMEOUT)
_TRANSIENT_STATUSES = {408, 412, 425, 429}  # 412: somebody else changed the branch meanwhile
_SERVER_ERROR = 500
_NOT_FOUND = 404
_READ_WITHOUT_CHECKS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What the client raises at an answer of another shape than the API's."""

_LONGEST_WORDS = 300


class HubRefused(SourceRefused):
    """The hub refused the request, and will refuse it again."""


class NotOnTheHub(HubRefused):
    """No such repository (or we may not even know of it), revision or file (404)."""


class RepositoryGated(HubRefused):
    """The repository's terms must be accepted first."""


class HubUnavailable(SourceUnavailable):
    """The hub, or the way to it, does not work right now."""


@dataclass(frozen=True)
class Hub:
    """A hub as this deployment reaches it.

    Attributes:
        token_variable: Environment variable that the token came from.
        api: The client.
    """

    token_variable: str
    api: HfApi = field(repr=False, compare=False)

    @property
    def endpoint(self) -> str:
        """Its URL, without a slash at the end."""
        return str(self.api.endpoint)

    @property
    def has_token(self) -> bool:
        """Whether that variable holds a token."""
        return bool(self.api.token)

    def headers(self) -> dict[str, str]:
        """Headers of a request, the authorization among them."""
        headers: dict[str, str] = build_hf_headers(
            token=self.api.token, library_name=_LIBRARY_NAME, library_version=__version__, headers=_UNPACKED
        )
        return headers

    def information(
        self, name: str, revision: str, where: str, *, kind: RepositoryKind = "model", **options: Any
    ) -> Any:
        """What the hub's API says of a repository at a revision.

        Args:
            name: `organisation/name`.
            revision: Branch, tag or commit.
            where: What is asked for, for errors.
            kind: What the repository holds.
            options: More for the client, such as `files_metadata`.

        Raises:
            HubRefused: No such repository or revision, or no access to it.
            HubUnavailable: The hub cannot be asked now.
            IntegrityError: The answer does not have the shape that the API promises, or is not of the commit asked for.
        """
        with self.errors_at(where):
            found = self.api.repo_info(name, revision=revision, repo_type=kind, timeout=TIMEOUT_SECONDS, **options)
        if not all(isinstance(sibling.rfilename, str) for sibling in found.siblings or ()):
            raise malformed_answer(where, "it lists a file without a name")
        if not found.sha:
            raise malformed_answer(where, "it names no commit")
        if re.fullmatch(r"[0-9a-f]{40}", revision) and found.sha != revision:
            raise malformed_answer(where, f"it is of commit {found.sha}, which is not the one requested")
        return found

    def require_access(self, pinned: PinnedModel, file: HubFile, where: str, kind: RepositoryKind = "model") -> None:
        """Ask for a file's metadata: the names of a gated repository's files are public, the files are not.

        Raises:
            HubRefused: No access to it.
            HubUnavailable: The hub cannot be asked now.
            IntegrityError: The file is served from another commit.
        """
        url = hf_hub_url(pinned.id, file.path, repo_type=kind, revision=pinned.commit, endpoint=self.endpoint)
        with self.errors_at(where):
            found = get_hf_file_metadata(url, headers=self.headers(), token=self.api.token, timeout=TIMEOUT_SECONDS)
        if found.commit_hash != pinned.commit:
            raise malformed_answer(where, f"a file of {pinned.commit} is served from {found.commit_hash}")

    @contextmanager
    def errors_at(self, where: str) -> Iterator[None]:
        """Raise the client's errors as ours.

        Raises:
            HubRefused: No access, or no such repository, revision or file.
            HubUnavailable: Throttled, a server error, a timeout, or no connection.
            IntegrityError: The answer does not have the shape that the API promises.
            ConfigError: Something that the client does not accept as a repository id.
        """
        try:
            yield
        except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError, RuntimeError, *_READ_WITHOUT_CHECKS) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of this machine's disk
                raise
            # one that is no HTTPError of the client's library may be the client's own, around one that is
            met = None if isinstance(error, errors.HTTPError) else error.__cause__
            raise self._translated(met or error, where) from error

    def _translated(self, error: BaseException, where: str) -> PipelineError:
        if isinstance(error, errors.HFValidationError):
            return ConfigError(f"the hub's client does not accept this name: {error}", where=where)
        if isinstance(error, errors.OfflineModeIsEnabled):
            hint = "unset HF_HUB_OFFLINE, or set model.source to a directory, and for data sets evaluation.data_source"
            return HubRefused("the hub's client is in offline mode", where=where, hint=hint)
        if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
            return self._refusal(error, error.response.status_code, where)
        if isinstance(error, _READ_WITHOUT_CHECKS):
            told = " ".join(str(error).split())
            return malformed_answer(where, f"{type(error).__name__}: {told}"[:_LONGEST_WORDS])
        hint = "check the network, the proxy (HTTPS_PROXY) and hub.endpoint of the deployment; it is tried again"
        problem = f"no answer from {self.endpoint}: {type(error).__name__}: {_first_line(error)}"
        return HubUnavailable(problem, where=where, hint=hint)

    def _refusal(self, error: errors.HfHubHTTPError, status: int, where: str) -> PipelineError:
        gone, gated = "no such file at this revision", "the repository is gated and this account has no access"
        named: list[tuple[type[Exception], type[HubRefused], str, str]] = [  # the more special class first
            (errors.DisabledRepoError, HubRefused, "the repository was disabled", "choose another repository"),
            (errors.GatedRepoError, RepositoryGated, gated, self._gate_hint(where)),
            (errors.RevisionNotFoundError, NotOnTheHub, "no such revision", "name a branch, tag or commit that exists"),
            (errors.RemoteEntryNotFoundError, NotOnTheHub, gone, "resolve the revision again"),
            (errors.RepositoryNotFoundError, NotOnTheHub, "no such repository, or it is private", self._token_hint()),
        ]
        for kind, ours, message, hint in named:
            if isinstance(error, kind):
                return ours(message, where=where, hint=hint)
        message = f"{self.endpoint} answers {status}: {error.server_message or _first_line(error)}"
        if status not in _TRANSIENT_STATUSES and status < _SERVER_ERROR:
            refused = NotOnTheHub if status == _NOT_FOUND else HubRefused
            return refused(message, where=where, hint=self._token_hint())
        hint = "it is tried again later" if self.has_token else f"a token in {self.token_variable} raises limits"
        busy = HubUnavailable(message, where=where, hint=hint)
        busy.retry_after_seconds = _retry_after(error.response.headers)
        return busy

    def _gate_hint(self, where: str) -> str:
        page = f"accept the terms at {self.endpoint}/{where.partition('@')[0]}"
        state = "with the account of the token in" if self.has_token else "then put a read token into"
        return f"{page} {state} {self.token_variable}"

    def _token_hint(self) -> str:
        if self.has_token:
            return f"check the name, and that the token in {self.token_variable} is valid and may do that"
        return f"check the name; for a private repository put a read token into {self.token_variable}"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the hub asks us to wait: of its own rate limit header when that is used up, or `Retry-After`."""
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isascii() and value.isdigit() else None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def connect(endpoint: str | None, token_variable: str) -> Hub:
    """The hub of a deployment. Sends nothing yet.

    Args:
        endpoint: Its URL; None for `HF_ENDPOINT` or the public hub.
        token_variable: Environment variable that holds the access token; without it, requests are anonymous.

    Raises:
        ConfigError: The endpoint is not a plain http or https URL.
    """
    address = hub_address(endpoint)
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ConfigError(
            "the hub's endpoint must be an http or https URL without credentials",
            where=parts.hostname or "hub.endpoint",
            hint=f"for example {PUBLIC_ENDPOINT}; the token goes into the environment variable {token_variable}",
        )
    token = os.environ.get(token_variable, "").strip()
    if any(not character.isprintable() or character.isspace() for character in token):
        raise ConfigError("the token holds white space or control characters", where=f"${token_variable}")
    quiet_third_parties()  # the client set its own level when it was imported
    if not sys.stderr.isatty():
        disable_progress_bars()
    _keep_open(get_session())
    api = HfApi(
        endpoint=address,
        token=token or False,
        library_name=_LIBRARY_NAME,
        library_version=__version__,
        headers=_UNPACKED,
    )
    return Hub(token_variable, api)


@cache
def _keep_open(session: Any) -> None:
    """Have the client keep its HTTP session, which all threads share, when a connection fails.

    It would close the session in one thread under the others, whose requests end then, or find no session at all.
    """
    library, send = import_module(type(session).__module__.partition(".")[0]), session.send

    def send_and_keep(*arguments: Any, **options: Any) -> Any:
        try:
            return send(*arguments, **options)
        except library.ConnectError as error:  # the only one at which the client closes it
            raise library.NetworkError(str(error), request=error.request) from error

    session.send = send_and_keep


def listed_file(sibling: Any) -> HubFile:
    """A file as the hub's API lists it."""
    sha256, size = (sibling.lfs.sha256, sibling.lfs.size) if sibling.lfs else (None, sibling.size)
    return HubFile(path=sibling.rfilename, size=size, sha256=sha256, blob_sha1=sibling.blob_id)


def malformed_answer(where: str, problem: str) -> IntegrityError:
    """The error for an answer of the hub that does not have the shape its API promises."""
    hint = "check that hub.endpoint is a model hub"
    return IntegrityError(f"the hub's answer cannot be used: {problem}", where=where, hint=hint)

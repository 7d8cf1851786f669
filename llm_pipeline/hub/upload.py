"""Files to a branch of a hub's repository, in one commit, checked afterwards by what the hub says it holds.

    pushed = push_files(connect(endpoint, variable), "org/name", files, message="Release ...", private=True)

Large files are sent first, each under its SHA-256, and are no part of the branch until the commit names them: what
reads the branch sees all of the files or none. Ended anywhere, the same call goes on: the hub says which large files it
has, and a commit that was made is found. It is one commit because `upload_folder` makes several of what takes minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from llm_pipeline.artifacts.pinned import DEFAULT_REVISION, HubFile
from llm_pipeline.base.digest import sha256_bytes
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.access import Hub, NotOnTheHub, listed_file
from llm_pipeline.hub.git_ids import blob_id
from llm_pipeline.hub.model_card import CARD_FILE

log = get_logger(__name__)

_OF_THE_HUB = frozenset({".gitattributes"})
"""Files that the hub puts into every repository."""


@dataclass(frozen=True)
class PushedFile:
    """A file to be pushed.

    Attributes:
        path: In the repository, with `/`.
        content: The file, or what is in it.
        size: Bytes.
        sha256: Of the content.
    """

    path: str
    content: Path | bytes
    size: int
    sha256: str

    def differs(self, listed: HubFile) -> str:
        """How what the hub lists under this path is something else; empty when it is the same, byte for byte."""
        if listed.size != self.size:
            return f"{listed.size} bytes instead of {self.size}"
        if listed.sha256 is not None:
            return "" if listed.sha256 == self.sha256 else f"SHA-256 {listed.sha256} instead of {self.sha256}"
        data = self.content if isinstance(self.content, bytes) else self.content.read_bytes()  # small: not in LFS
        if sha256_bytes(data) != self.sha256:
            return "changed here since it was hashed"
        return "" if listed.blob_sha1 == blob_id(data) else f"Git's blob {listed.blob_sha1} instead of {blob_id(data)}"


@dataclass(frozen=True)
class Pushed:
    """Where the files are.

    Attributes:
        commit: Holds them and nothing else.
        url: The page of the repository.
        made: Whether this call made that commit; otherwise it was there.
    """

    repository: str
    commit: str
    url: str
    made: bool


@dataclass(frozen=True)
class _Held:
    """What a branch holds."""

    commit: str
    private: bool
    files: Mapping[str, HubFile]


def push_files(
    hub: Hub, repository: str, files: Sequence[PushedFile], *, marker: str, message: str, private: bool = False
) -> Pushed:
    """Make the files all that the branch `main` of a repository holds; the repository is created where there is none.

    Args:
        hub: The hub, with a token that may write.
        repository: `organisation/name`.
        files: Everything that the branch shall hold.
        marker: Path of the file that tells a repository of ours from another one.
        message: The commit's first line.
        private: Create it as a private one; one that is public already is refused. Otherwise the hub decides.

    Raises:
        ConfigError: There is no token, the repository is somebody's own, or public and shall not be.
        HubRefused: The hub does not let us, or takes no such file or card.
        HubUnavailable: The hub cannot be asked now, or somebody else pushed meanwhile; the same call goes on where this
            one stopped, and finds a commit whose answer was lost.
        IntegrityError: The commit does not hold what was sent.
    """
    _require_token(hub, repository)
    try:
        held = _held(hub, repository)
    except NotOnTheHub:
        with hub.errors_at(repository):
            hub.api.create_repo(repository, private=private or None, exist_ok=True)
        log.info("created the repository", repository=repository, private=private)
        held = _held(hub, repository)
    _require_ours(held, repository, marker, private=private)
    url = f"{hub.endpoint}/{repository}"
    if not _differences(held, files):
        return Pushed(repository, held.commit, url, made=False)
    wanted = {file.path for file in files}
    gone = [CommitOperationDelete(path) for path in sorted(held.files.keys() - wanted - _OF_THE_HUB)]
    sent = [CommitOperationAdd(file.path, file.content) for file in files]
    with hub.errors_at(repository):
        made = hub.api.create_commit(
            repository, [*gone, *sent], commit_message=message, revision=DEFAULT_REVISION, parent_commit=held.commit
        )
    now = _held(hub, repository, made.oid)  # not the branch: somebody else may have pushed since
    if wrong := _differences(now, files):
        raise IntegrityError(
            f"the commit does not hold what was sent: {'; '.join(wrong[:5])}",
            where=f"{repository}@{now.commit}",
            hint="push again; if that does not help, report it to the hub",
        )
    return Pushed(repository, now.commit, url, made=True)


def account(hub: Hub) -> str:
    """The name of the account that the token is of.

    Raises:
        ConfigError: There is no token.
        HubRefused: The hub does not know it.
        HubUnavailable: The hub cannot be asked now.
    """
    _require_token(hub, hub.endpoint)
    with hub.errors_at(hub.endpoint):
        return str(hub.api.whoami()["name"])


def _require_token(hub: Hub, where: str) -> None:
    if not hub.has_token:
        hint = f"put one that may write to the repository into {hub.token_variable}"
        raise ConfigError("a push needs a token", where=where, hint=hint)


def _held(hub: Hub, repository: str, revision: str = DEFAULT_REVISION) -> _Held:
    info = hub.information(repository, revision, repository, files_metadata=True)
    files = {sibling.rfilename: listed_file(sibling) for sibling in info.siblings or ()}
    return _Held(info.sha, bool(info.private), files)


def _require_ours(held: _Held, repository: str, marker: str, *, private: bool) -> None:
    if private and not held.private:
        hint = "make it private on the hub, name another one, or leave --private out"
        raise ConfigError("the repository is public", where=repository, hint=hint)
    foreign = sorted(held.files.keys() - _OF_THE_HUB - {CARD_FILE})
    if foreign and marker not in held.files:
        raise ConfigError(
            f"the repository holds files that were not pushed by this command: {', '.join(foreign[:4])}",
            where=repository,
            hint="name a new repository: a push replaces all files of the branch",
        )


def _differences(held: _Held, files: Sequence[PushedFile]) -> list[str]:
    """How a branch is not what it shall be."""
    wanted = {file.path for file in files}
    found = [f"{path} is left over" for path in sorted(held.files.keys() - wanted - _OF_THE_HUB)]
    for file in files:
        listed = held.files.get(file.path)
        difference = "missing" if listed is None else file.differs(listed)
        found += [f"{file.path}: {difference}"] if difference else []
    return found

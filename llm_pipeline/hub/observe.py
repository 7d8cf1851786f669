"""What a revision names right now, in as few requests as that takes: the release watch asks again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_pipeline.artifacts.model_files import select_files
from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.errors import IntegrityError, Unsupported
from llm_pipeline.hub.access import Hub, HubRefused
from llm_pipeline.hub.watch import Head, Reference


@dataclass(frozen=True)
class Listing:
    """The files of one commit.

    Attributes:
        files: SHA-256 (of files in LFS) or Git's blob id by path, of every file.
    """

    commit: str
    files: Mapping[str, str]

    def reference(self) -> Reference:
        """The commit and the digest of its files that count."""
        return Reference(commit=self.commit, content=self.head("", None).content)

    def head(self, revision: str, since: Listing | None) -> Head:
        """The commit as the policy sees it, with the files that differ from those of `since`."""
        try:
            counted = _counted_of(self.files)
        except (IntegrityError, Unsupported) as error:
            return Head(commit=self.commit, revision=revision, unusable=error.message)
        changed = _differences(self.files, since.files) if since is not None else frozenset()
        relevant = changed & (counted.keys() | (since.counted() if since is not None else frozenset()))
        return Head(
            commit=self.commit,
            revision=revision,
            content=sha256_json(counted),
            counted=tuple(sorted(relevant)),
            others=tuple(sorted(changed - relevant)),
        )

    def counted(self) -> frozenset[str]:
        """Names of the files that count; none when the commit cannot be released."""
        try:
            return frozenset(_counted_of(self.files))
        except (IntegrityError, Unsupported):
            return frozenset()


class Observer:
    """Looks at one revision again and again; keeps the listings of the last two commits that mattered."""

    def __init__(self, hub: Hub, model_id: str, revision: str) -> None:
        self._hub = hub
        self._model_id = model_id
        self._revision = revision
        self._listings: dict[str, Listing] = {}

    def head(self, reference: Reference | None) -> Head:
        """What the revision names now, compared with a reference.

        Raises:
            HubRefused: No such repository or revision, or no access to it.
            HubUnavailable: The hub cannot be asked now.
            IntegrityError: An answer is malformed.
        """
        commit = head_commit(self._hub, self._model_id, self._revision)
        if reference is not None and commit == reference.commit:
            return Head(commit=commit, revision=self._revision, content=reference.content)
        listing = self._listing(commit)
        before = self._listing_if_there(reference.commit) if reference is not None else None
        self._listings = {one.commit: one for one in (listing, before) if one is not None}
        return listing.head(self._revision, before)

    def _listing(self, commit: str) -> Listing:
        if commit not in self._listings:
            self._listings[commit] = list_commit(self._hub, self._model_id, commit)
        return self._listings[commit]

    def _listing_if_there(self, commit: str) -> Listing | None:
        try:
            return self._listing(commit)
        except HubRefused:  # rewritten history: the hub forgets commits that nothing names
            return None


def head_commit(hub: Hub, model_id: str, revision: str) -> str:
    """The commit that a revision names: one small request.

    Raises:
        HubRefused: No such repository or revision, or no access to it.
        HubUnavailable: The hub cannot be asked now.
        IntegrityError: The answer is malformed.
    """
    return str(hub.information(model_id, revision, f"{model_id}@{revision}", expand=["sha"]).sha)


def list_commit(hub: Hub, model_id: str, commit: str) -> Listing:
    """All files of a commit with their identities.

    Raises:
        HubRefused: No such commit (any more), or no access to it.
        HubUnavailable: The hub cannot be asked now.
        IntegrityError: The answer is malformed.
    """
    where = f"{model_id}@{commit}"
    information = hub.information(model_id, commit, where, files_metadata=True)
    siblings: list[Any] = information.siblings or []
    return Listing(commit, {one.rfilename: one.lfs.sha256 if one.lfs else str(one.blob_id) for one in siblings})


def listing_of(model: PinnedModel) -> Listing:
    """The files of a model that was resolved before, as far as they are fetched."""
    return Listing(model.commit, {file.path: file.content for file in model.files})


def _counted_of(files: Mapping[str, str]) -> dict[str, str]:
    """Out of all of a commit's files, those that a release fetches.

    Raises:
        IntegrityError: The listing names unsafe files.
        Unsupported: It is not a model that can be released.
    """
    return {path: files[path] for path in select_files(files).fetched}


def _differences(files: Mapping[str, str], before: Mapping[str, str]) -> frozenset[str]:
    return frozenset(path for path in files.keys() | before.keys() if files.get(path) != before.get(path))

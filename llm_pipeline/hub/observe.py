"""What a revision names right now, in as few requests as that takes: the release watch asks again and again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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
        return Reference(commit=self.commit, content=self.head("", {}).content)

    def head(self, revision: str, before: Mapping[str, str]) -> Head:
        """The commit as the policy sees it, with the files that count, or are gone, and differ from those before."""
        try:
            fetched = select_files(self.files).fetched
        except (IntegrityError, Unsupported) as error:
            return Head(commit=self.commit, revision=revision, unusable=error.message)
        candidates = {*fetched, *(before.keys() - self.files.keys())} if before else set()
        return Head(
            commit=self.commit,
            revision=revision,
            content=sha256_json({path: self.files[path] for path in fetched}),
            counted=tuple(sorted(path for path in candidates if self.files.get(path) != before.get(path))),
        )


def observe(hub: Hub, model_id: str, revision: str, reference: Reference | None) -> Head:
    """What a revision names now, compared with a reference.

    Raises:
        HubRefused: No such repository or revision, or no access to it.
        HubUnavailable: The hub cannot be asked now.
        IntegrityError: An answer is malformed.
    """
    commit = head_commit(hub, model_id, revision)
    if reference is not None and commit == reference.commit:
        return Head(commit=commit, revision=revision, content=reference.content)
    before: Mapping[str, str] = {}
    if reference is not None:
        with suppress(HubRefused):  # rewritten history: the hub forgets commits that nothing names
            before = list_commit(hub, model_id, reference.commit).files
    return list_commit(hub, model_id, commit).head(revision, before)


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

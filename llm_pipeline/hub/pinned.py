"""A pinned model: one commit of a hub repository, and the files of it that we fetch. Pure data."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from llm_pipeline.config.model import ConfigModel, HubId
from llm_pipeline.hub.files import unsafe_reason

Sha1 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class HubFile(ConfigModel):
    """One file of a pinned model.

    Attributes:
        path: Path in the repository, with `/`.
        size: Bytes.
        sha256: Of the content, for files in LFS; None for small ones.
        blob_sha1: Git's blob id: of the content of a small file, of the LFS pointer of a large one.
    """

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256 | None = None
    blob_sha1: Sha1

    @field_validator("path")
    @classmethod
    def _is_safe(cls, path: str) -> str:
        if reason := unsafe_reason(path):
            raise ValueError(f"unsafe path: {reason}")
        return path


class PinnedModel(ConfigModel):
    """A model at one commit.

    Attributes:
        id: `organisation/name`.
        commit: The commit that the revision named when it was resolved.
        files: What is fetched, sorted by path; nothing else is.
        license: As the repository's card says; None when it says nothing.
        gated: How the repository is gated (`auto`, `manual`); None when it is not.
    """

    id: HubId
    commit: Sha1
    files: tuple[HubFile, ...]
    license: str | None = None
    gated: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

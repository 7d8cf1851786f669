"""A pinned model: one state of it in a source, and the files of it that we fetch. Pure data."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, field_validator, model_validator

from llm_pipeline.artifacts.model_files import unsafe_reason
from llm_pipeline.config.model import ConfigModel, DataSetName, HubId

Sha1 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

DEFAULT_REVISION = "main"


class HubFile(ConfigModel):
    """One file of a pinned model. At least one of its names of content is known.

    Attributes:
        path: Path in the repository, with `/`.
        size: Bytes.
        sha256: Of the content, for files in LFS; None for small ones of the hub.
        blob_sha1: Git's blob id: of the content of a small file, of the LFS pointer of a large one.
        entity_tag: An S3 object's: a read of another one is refused.
    """

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Sha256 | None = None
    blob_sha1: Sha1 | None = None
    entity_tag: str | None = None

    @field_validator("path")
    @classmethod
    def _is_safe(cls, path: str) -> str:
        if reason := unsafe_reason(path):
            raise ValueError(f"unsafe path: {reason}")
        return path

    @model_validator(mode="after")
    def _names_its_content(self) -> HubFile:
        if not (self.sha256 or self.blob_sha1 or self.entity_tag):
            raise ValueError("sha256, blob_sha1 or entity_tag must say what its content is")
        return self

    @property
    def content(self) -> str:
        """A name of its content: files of one model that share it have the same bytes."""
        return self.sha256 or self.blob_sha1 or str(self.entity_tag)


class PinnedModel(ConfigModel, extra="ignore"):  # records of earlier releases say more
    """A model at one commit.

    Attributes:
        id: `organisation/name`.
        commit: The commit that the revision named when it was resolved; for a directory and an S3 prefix, an id over
            the names of the files' content.
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
        """Bytes of all files that are fetched."""
        return sum(file.size for file in self.files)

    @property
    def name(self) -> str:
        """Id and commit, for errors and logs."""
        return f"{self.id}@{self.commit[:12]}"


class PinnedDataSet(PinnedModel):
    """A data set at one commit, with every file of its repository."""

    id: DataSetName

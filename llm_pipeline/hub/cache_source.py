"""The Hugging Face cache of a machine as a source, without a network.

Its layout (https://huggingface.co/docs/huggingface_hub/guides/manage-cache): `models--<organisation>--<name>/`, or
`datasets--..` for a data set, with `refs/<revision>`, `snapshots/<commit>/<path>`, which are links, and
`blobs/<entity tag>`, which hold the bytes. The tag is the SHA-256 of a file in LFS and Git's blob id of a small one, so
every byte can be verified as if it came from the hub. A blob may itself be a link to one that several models share,
`<cache>/blobs/..`.
"""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_pipeline.artifacts.model_files import Selection, select_files, unsafe_reason
from llm_pipeline.artifacts.pinned import DEFAULT_REVISION, HubFile, PinnedDataSet, PinnedModel
from llm_pipeline.base.directory_listing import refuse_unreadable
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.hub.directory_source import license_of, open_body, read_part
from llm_pipeline.hub.git_ids import blob_id, lfs_pointer
from llm_pipeline.hub.model_card import CARD_FILE
from llm_pipeline.hub.source import Body, ModelLook, SourceRefused, report_resolved
from llm_pipeline.hub.transfer import difference

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ENTITY_TAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256_DIGITS = 64


def default_cache() -> Path:
    """The cache that the hub's client uses: `HF_HUB_CACHE`, or below `HF_HOME`."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


@dataclass(frozen=True)
class CacheSource:
    """A cache that models, or data sets, are read from."""

    root: Path
    repositories: Literal["model", "dataset"] = "model"

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        model, selection = self._pinned(model_id, revision)
        report_resolved(model, selection)
        return model

    def _pinned(self, model_id: str, revision: str) -> tuple[PinnedModel, Selection]:
        where = f"{model_id}@{revision} in {self.root}"
        commit = self._commit(model_id, revision, where)
        snapshot = self._repository(model_id) / "snapshots" / commit
        paths = _paths_below(snapshot)
        selection = select_files(paths, where=where)
        model = PinnedModel(
            id=model_id,
            commit=commit,
            files=tuple(self._file(snapshot, path, where) for path in selection.fetched),
            license=self._license(snapshot, where) if CARD_FILE in paths else None,
        )
        return model, selection

    def pin(self, name: str, revision: str) -> PinnedDataSet:
        """Every file of a data set in the cache; what was never downloaded is not known here.

        Raises:
            SourceRefused: No such data set or revision in the cache.
            IntegrityError: It is no cache of the hub's client.
        """
        where = f"{name}@{revision} in {self.root}"
        commit = self._commit(name, revision, where)
        snapshot = self._repository(name) / "snapshots" / commit
        files = tuple(self._file(snapshot, path, where) for path in sorted(_paths_below(snapshot)))
        return PinnedDataSet(id=name, commit=commit, files=files)

    def look(self, model_id: str, revision: str) -> ModelLook:
        model, _ = self._pinned(model_id, revision)
        snapshot = self._repository(model_id) / "snapshots" / model.commit

        def read(path: str, start: int, length: int) -> bytes:
            return read_part(self._blob(snapshot / path, f"{model.name}: {path}"), start, length)

        return ModelLook(model.name, {file.path: file.size for file in model.files}, read)

    def open(self, model: PinnedModel, file: HubFile, start: int) -> AbstractContextManager[Body]:
        where = f"{model.name}: {file.path}"
        snapshot = self._repository(model.id) / "snapshots" / model.commit
        return open_body(self._blob(snapshot / file.path, where), start, where)

    def _repository(self, model_id: str) -> Path:
        return self.root / f"{self.repositories}s--{model_id.replace('/', '--')}"

    def _commit(self, model_id: str, revision: str, where: str) -> str:
        repository = self._repository(model_id)
        if not repository.is_dir():
            kind, option = ("data set", " --repo-type dataset") if self.repositories == "dataset" else ("model", "")
            raise SourceRefused(
                f"the cache does not have this {kind}",
                where=where,
                hint=f"`hf download {model_id}{option} --cache-dir {self.root}` on a machine with a network fills it",
            )
        reference = repository / "refs" / revision
        commit = revision
        if unsafe_reason(revision) is None and reference.is_file():
            commit = reference.read_text().strip()
        elif revision == DEFAULT_REVISION and self.repositories == "dataset":
            commit = self._only_commit(repository) or revision  # the `datasets` library writes no reference
        if not _COMMIT.fullmatch(commit) or not (repository / "snapshots" / commit).is_dir():
            known = sorted(path.name for path in (repository / "snapshots").glob("*"))
            raise SourceRefused(
                "the cache does not have this revision",
                where=where,
                hint=f"it has the commits {', '.join(known[:4]) or 'none'}",
            )
        return commit

    def _only_commit(self, repository: Path) -> str | None:
        found = [path.name for path in (repository / "snapshots").glob("*")]
        return found[0] if len(found) == 1 else None

    def _file(self, snapshot: Path, path: str, where: str) -> HubFile:
        blob = self._blob(snapshot / path, f"{where}: {path}")
        tag, size = _entity_tag(snapshot / path, where), blob.stat().st_size
        if len(tag) == _SHA256_DIGITS:
            return HubFile(path=path, size=size, sha256=tag, blob_sha1=blob_id(lfs_pointer(tag, size)))
        return HubFile(path=path, size=size, blob_sha1=tag)

    def _license(self, snapshot: Path, where: str) -> str | None:
        """The card's licence; a card that is not what its name says is not believed."""
        card = self._blob(snapshot / CARD_FILE, where)
        if problem := difference(card, self._file(snapshot, CARD_FILE, where)):
            raise IntegrityError(f"{CARD_FILE} is damaged: {problem}", where=where, hint="remove it from the cache")
        return license_of(card)

    def _blob(self, link: Path, where: str) -> Path:
        """The regular file behind a snapshot's link: in the model's blobs, or in those that models share.

        Raises:
            IntegrityError: It is anything else, or leads anywhere else.
        """
        blobs = link.parents[len(link.relative_to(self.root).parts) - 2] / "blobs"
        first = blobs / _entity_tag(link, where)
        if os.path.normpath(link.parent / link.readlink()) != os.path.normpath(first):
            raise IntegrityError("a link leads out of the model's blobs", where=where, hint=_NOT_A_CACHE)
        resolved, root = first.resolve(), self.root.resolve()
        if not any(resolved.is_relative_to(place) for place in ((root / blobs.parent.name / "blobs"), root / "blobs")):
            raise IntegrityError("a blob leads out of the cache's blobs", where=where, hint=_NOT_A_CACHE)
        if not resolved.is_file():
            raise IntegrityError("the cache lacks a blob of this model", where=where, hint="download the model again")
        return resolved


_NOT_A_CACHE = "the hub's client does not make such a cache; do not use it"


def _entity_tag(link: Path, where: str) -> str:
    if not link.is_symlink():
        raise IntegrityError(
            f"{link.name} is not a link to a blob: what it should hold is unknown",
            where=where,
            hint="a cache made without symbolic links cannot be verified: name its snapshot as source: file:///..",
        )
    tag = link.readlink().name
    if not _ENTITY_TAG.fullmatch(tag):
        raise IntegrityError(f"a blob's name is not a hash: {tag[:80]!r}", where=where, hint=_NOT_A_CACHE)
    return tag


def _paths_below(snapshot: Path) -> list[str]:
    return [
        (Path(folder) / name).relative_to(snapshot).as_posix()
        for folder, folders, names in os.walk(snapshot, onerror=refuse_unreadable)
        for name in [*names, *(name for name in folders if (Path(folder) / name).is_symlink())]
    ]

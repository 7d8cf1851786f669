"""A directory of this machine as a source. It has no commits: what it holds is hashed, and that is its name."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from llm_pipeline.artifacts.model_files import Selection, select_files, unsafe_reason
from llm_pipeline.artifacts.pinned import DEFAULT_REVISION, HubFile, PinnedDataSet, PinnedModel
from llm_pipeline.base.directory_listing import refuse_unreadable
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.progress import made_progress
from llm_pipeline.hub.git_ids import content_commit
from llm_pipeline.hub.model_card import CARD_FILE, MAXIMUM_CARD_BYTES, card_fields, stated_license
from llm_pipeline.hub.source import ModelLook, SourceRefused, report_resolved

_BLOCK = 1024 * 1024


def read_part(path: Path, start: int, length: int) -> bytes:
    """Some bytes of a regular file; fewer at its end.

    Raises:
        SourceRefused: It is gone, may not be read, or is no regular file.
    """
    with _open_regular(path, str(path)) as stream:
        stream.seek(start)
        return stream.read(length)


@contextmanager
def _open_regular(path: Path, where: str) -> Iterator[BinaryIO]:
    """A regular file's bytes; a link in its place is not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would block for ever
    except OSError as error:
        denied = isinstance(error, PermissionError)  # else it is gone, or has become a link
        hint = "make it readable for the user that runs this" if denied else "resolve the release again"
        raise SourceRefused(f"it cannot be opened: {error.strerror}", where=where, hint=hint) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceRefused("not a regular file", where=where, hint="only regular files are read")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


_HASHED_AT_ONCE = 4
_IGNORED_DIRECTORIES = {".git", ".cache"}


def require_revision(commit: str, revision: str, where: str, *, field: str = "model.revision") -> None:
    """Refuse a revision of a source that has only one state.

    Raises:
        SourceRefused: It is neither the default nor what the source holds now.
    """
    if revision not in (DEFAULT_REVISION, commit):
        hint = f"leave {field} out; if the files changed since the release was resolved, release them again"
        raise SourceRefused(f"this source has no revisions; it holds {commit} now", where=where, hint=hint)


@dataclass(frozen=True)
class DirectorySource:
    """A directory that a model is read from."""

    root: Path

    def resolve(self, model_id: str, revision: str) -> PinnedModel:
        """Pins the files by their hashes, which reads every byte of those that are fetched."""
        selection = self._selection()
        files, commit = self._hashed(selection.fetched, revision, "model.revision")
        card = self.root / CARD_FILE
        text = read_part(card, 0, MAXIMUM_CARD_BYTES).decode(errors="replace") if card.exists() else ""
        model = PinnedModel(id=model_id, commit=commit, files=files, license=stated_license(card_fields(text)))
        report_resolved(model, selection)
        return model

    def pin(self, name: str, revision: str) -> PinnedDataSet:
        """Every file, as a data set's. Reads every byte.

        Raises:
            IntegrityError: There is something that is no regular file.
            SourceRefused: The revision is not what the directory holds.
        """
        paths = sorted(path for path in self._paths() if unsafe_reason(path) is None)
        files, commit = self._hashed(paths, revision, "evaluation.data_revisions")
        return PinnedDataSet(id=name, commit=commit, files=files)

    def look(self, model_id: str, revision: str) -> ModelLook:
        """Looks at the directory as it is; it has no revisions."""
        del model_id, revision
        sizes = {path: (self.root / path).lstat().st_size for path in self._selection().fetched}
        return ModelLook(str(self.root), sizes, lambda path, start, length: read_part(self.root / path, start, length))

    def _selection(self) -> Selection:
        where = str(self.root)
        if not self.root.is_dir():
            raise ConfigError("there is no such directory", where=where, hint="correct model.source")
        return select_files(self._paths(), where=where)

    def fetch(self, model: PinnedModel, file: HubFile, directory: Path) -> None:
        del model
        source, target = self.root / file.path, directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with _open_regular(source, str(source)) as stream, target.open("wb") as copy:
            shutil.copyfileobj(stream, copy, _BLOCK)

    def _paths(self) -> list[str]:
        paths = []
        for folder, folders, names in os.walk(self.root, onerror=refuse_unreadable):
            folders[:] = [name for name in folders if name not in _IGNORED_DIRECTORIES]
            for name in (*folders, *names):
                path = Path(folder) / name
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    hint = "copy the model with `cp -rL`; `hf download MODEL --local-dir ..` writes files, not links"
                    problem = "a symbolic link or a special file: only regular files are read"
                    raise IntegrityError(problem, where=str(path), hint=hint)
            paths += [(Path(folder) / name).relative_to(self.root).as_posix() for name in names]
        return paths

    def _hashed(self, paths: Iterable[str], revision: str, field: str) -> tuple[tuple[HubFile, ...], str]:
        """The files with their hashes, and an id over these, which the revision must be, or none."""
        with ThreadPoolExecutor(_HASHED_AT_ONCE) as pool:
            files = tuple(pool.map(self._hash, paths))
        commit = content_commit({file.path: file.content for file in files})
        require_revision(commit, revision, str(self.root), field=field)
        return files, commit

    def _hash(self, path: str) -> HubFile:
        size, sha256 = 0, hashlib.sha256()
        with _open_regular(self.root / path, str(self.root / path)) as stream:
            while chunk := stream.read(_BLOCK):
                made_progress()
                sha256.update(chunk)
                size += len(chunk)
        return HubFile(path=path, size=size, sha256=sha256.hexdigest())

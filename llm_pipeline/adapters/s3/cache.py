"""Local copies of artifacts that lie in S3: each whole or absent, and downloaded by one process at a time."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from llm_pipeline.base.errors import Transient, hint_of
from llm_pipeline.base.file_lock import flocked
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.store.manifest import Difference, Manifest, ManifestFile, differences

log = get_logger(__name__)

_PASSES = 2

Download = Callable[[Sequence[ManifestFile], Path], None]


class Cache:
    """Directories `<root>/<kind>/<digest>`; a copy is made in `<root>/incoming` and appears by one rename."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def directory(self, ref: ArtifactRef) -> Path:
        """Where the artifact's copy is, or will be."""
        return self._root / ref.kind / ref.digest

    def get(
        self, ref: ArtifactRef, manifest: Manifest, own_files: Mapping[str, bytes], download: Download
    ) -> Sequence[Difference]:
        """Make the copy be there, with the bytes that the manifest names.

        Args:
            ref: The artifact.
            manifest: Its manifest, already trusted.
            own_files: The store's own files of the artifact, to lie beside its files.
            download: Brings files into a directory; called again for those that came out wrong.

        Returns:
            What is still wrong after a second download; then there is no copy.

        Raises:
            Transient: The disk is full or fails.
        """
        try:
            return self._get(ref, manifest, own_files, download)
        except OSError as error:
            raise Transient(
                f"cannot copy {ref}: {error.strerror}",
                where=str(error.filename or self._root),
                hint=hint_of(error, "check the disk of store.cache"),
            ) from error

    def _get(
        self, ref: ArtifactRef, manifest: Manifest, own_files: Mapping[str, bytes], download: Download
    ) -> Sequence[Difference]:
        if self._is_whole(ref, manifest, own_files):
            return []
        with self._locked(ref):
            if self._is_whole(ref, manifest, own_files):  # another process made it while this one waited
                return []
            incoming = self._root / "incoming" / f"{ref.kind}-{ref.digest}"  # a killed process' files are used again
            if found := _completed(manifest, incoming, download):
                shutil.rmtree(incoming)
                return found
            for name, content in own_files.items():
                (incoming / name).write_bytes(content)
            self._place(incoming, self.directory(ref))
        return []

    def _is_whole(self, ref: ArtifactRef, manifest: Manifest, own_files: Mapping[str, bytes]) -> bool:
        directory = self.directory(ref)
        if not directory.is_dir() or differences(manifest, directory):
            return False
        for name, content in own_files.items():
            path = directory / name
            if not path.is_file() or path.read_bytes() != content:
                return False
        return True

    def _place(self, incoming: Path, final: Path) -> None:
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():
            log.warning("replacing a damaged copy of an artifact", directory=str(final))
            damaged = self._root / "incoming" / f"damaged-{uuid.uuid4().hex}"
            final.rename(damaged)
            incoming.rename(final)
            shutil.rmtree(damaged)
        else:
            incoming.rename(final)

    @contextmanager
    def _locked(self, ref: ArtifactRef) -> Iterator[None]:
        """A lock that the kernel holds for this process only: a killed holder frees it."""
        locks = self._root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with flocked(locks / f"{ref.kind}-{ref.digest}"):
            yield


def _completed(manifest: Manifest, directory: Path, download: Download) -> Sequence[Difference]:
    """Download what a directory lacks, and once more what came out wrong; returns what is still wrong."""
    found = _lacking(manifest, directory)
    for _ in range(_PASSES):
        if not found:
            break
        wrong = {difference.path for difference in found}
        download([file for file in manifest.files if file.path in wrong], directory)
        found = differences(manifest, directory)
    return found


def _lacking(manifest: Manifest, directory: Path) -> Sequence[Difference]:
    """What an interrupted download has yet to bring."""
    if directory.exists():
        wanted = {file.path for file in manifest.files}
        found = differences(manifest, directory)
        if all(difference.path in wanted for difference in found):
            return found
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return [Difference(file.path, "missing") for file in manifest.files]

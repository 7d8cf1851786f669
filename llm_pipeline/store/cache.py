"""Local copies of artifacts that lie in a bucket, downloaded by one process at a time and verified each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_pipeline.base.file_lock import flocked
from llm_pipeline.base.logging import get_logger
from llm_pipeline.store.blobs import Changed
from llm_pipeline.store.file_blobs import FileBlobs, disk_errors
from llm_pipeline.store.manifest import Difference, Manifest, differences, files_of, listing_differences
from llm_pipeline.store.s3_blobs import S3Blobs, Wanted

log = get_logger(__name__)

_PASSES = 2


class Cache:
    """Copies under the names that they have in the bucket. A killed download goes on with the files that are there."""

    def __init__(self, root: Path, bucket: S3Blobs) -> None:
        self._copies = FileBlobs(root)
        self._bucket = bucket

    def directory(self, name: str) -> Path:
        """Where an artifact's copy is."""
        return self._copies.root / name

    def get(self, name: str, manifest: Manifest, own_files: Mapping[str, bytes]) -> Sequence[Difference]:
        """Make the copy be there, with the bytes that a trusted manifest names.

        Args:
            name: The artifact's directory.
            manifest: Its manifest.
            own_files: The store's own files of it, to lie beside its files.

        Returns:
            What is still wrong after a second download; then the copy is of no use.

        Raises:
            Transient: The disk is full or fails, or the bucket gives no answer.
        """
        if found := self._differences(name, manifest):
            with disk_errors(f"cannot copy {manifest.ref}"):
                self.directory(name).mkdir(parents=True, exist_ok=True)
                (self._copies.root / "locks").mkdir(exist_ok=True)
                with flocked(self._copies.root / "locks" / f"{manifest.kind}-{manifest.digest}"):
                    found = self._completed(name, manifest)
        for file, content in own_files.items():
            there = self._copies.get(f"{name}/{file}")
            if not found and (there is None or there.data != content):
                self._copies.put(f"{name}/{file}", content)
        return found

    def _completed(self, name: str, manifest: Manifest) -> Sequence[Difference]:
        """Download what a copy lacks, and once more what came out wrong or changed meanwhile."""
        found = self._differences(name, manifest)
        for _ in range(_PASSES):
            if not found:
                break
            objects = files_of(self._bucket, name)
            if lost := listing_differences(manifest, objects):
                return lost
            wrong = {difference.path for difference in found}
            self._copies.delete_all([f"{name}/{path}" for path in wrong])
            wanted = {path: Wanted(objects[path].name, objects[path].revision) for path in wrong & objects.keys()}
            try:
                self._bucket.download({self.directory(name) / path: item for path, item in wanted.items()})
            except Changed as error:
                log.warning("an artifact changed while it was copied", artifact=str(manifest.ref), where=error.where)
            found = self._differences(name, manifest)
        return found

    def _differences(self, name: str, manifest: Manifest) -> Sequence[Difference]:
        return differences(self._copies, name, manifest, self._copies.sha256)

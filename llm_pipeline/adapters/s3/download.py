"""Files out of S3: parallel ranged reads that fail if an object changes, and bytes hashed as they stream by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_pipeline.base.progress import made_progress
from llm_pipeline.store.manifest import MARKERS, Difference, Manifest, ManifestFile
from llm_pipeline.store.s3_bucket import Bucket, S3Object, in_parallel
from llm_pipeline.store.s3_session import Changed

_RANGE_BYTES = 16 * 1024 * 1024

Objects = Mapping[str, S3Object]
"""The objects of an artifact by their paths in it, without the store's own."""


def objects_of(bucket: Bucket, directory: str) -> Objects:
    """What lies below an artifact's name."""
    listed = {item.name.removeprefix(f"{directory}/"): item for item in bucket.list(f"{directory}/")}
    return {path: item for path, item in listed.items() if path not in MARKERS}


def listing_differences(manifest: Manifest, objects: Objects) -> list[Difference]:
    """How a listing differs from a manifest: missing, extra, or of another size."""
    wanted = {file.path: file for file in manifest.files}
    found = [Difference(path, "missing") for path in sorted(wanted.keys() - objects.keys())]
    found += [Difference(path, "not in the manifest: an extra file") for path in sorted(objects.keys() - wanted.keys())]
    for path in sorted(wanted.keys() & objects.keys()):
        if wanted[path].size != objects[path].size:
            found.append(Difference(path, f"changed: {objects[path].size} bytes, not {wanted[path].size}"))
    return found


def stored_difference(bucket: Bucket, file: ManifestFile, item: S3Object) -> Difference | None:
    """How an object differs from the manifest as far as S3 itself knows its content.

    S3 stores the SHA-256 of an object that came in one request. Of one that came in parts it stores the SHA-256 of
    the parts' SHA-256, which a manifest cannot be compared with: there the SHA-256 counts that its uploader wrote
    beside it.
    """
    known = bucket.head(item.name)
    if known is None:
        return Difference(file.path, "missing")
    if known.item.size != file.size:
        return Difference(file.path, f"changed: {known.item.size} bytes, not {file.size}")
    sha256 = known.claimed if known.parts else known.sha256 or known.claimed
    if known.claimed is None or sha256 is None:
        return Difference(file.path, "changed: no store wrote it")
    if sha256 != file.sha256:
        return Difference(file.path, f"changed: SHA-256 is {sha256}, not {file.sha256}")
    return None


def streamed_difference(bucket: Bucket, file: ManifestFile, item: S3Object) -> Difference | None:
    """How an object's bytes differ from the manifest; nothing is kept on disk."""
    hasher = hashlib.sha256()
    try:
        for chunk in bucket.stream(item):
            hasher.update(chunk)
    except Changed:
        return Difference(file.path, "changed while it was read")
    if hasher.hexdigest() != file.sha256:
        return Difference(file.path, f"changed: SHA-256 is {hasher.hexdigest()}, not {file.sha256}")
    return None


def download(bucket: Bucket, objects: Objects, files: Sequence[ManifestFile], directory: Path) -> None:
    """Fetch files into a directory; their hashes are for the caller to check.

    Raises:
        Changed: An object was replaced while it was read.
        Transient: S3 gives no answer.
        OSError: The directory cannot be written to.
    """
    for file in files:
        target = directory / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        os.truncate(target, file.size)

    def fetch_range(wanted: tuple[ManifestFile, int]) -> None:
        file, start = wanted
        _fetch_range(bucket, objects[file.path], directory / file.path, start)

    in_parallel(fetch_range, [(file, start) for file in files for start in range(0, file.size, _RANGE_BYTES)])


def _fetch_range(bucket: Bucket, item: S3Object, target: Path, start: int) -> None:
    with target.open("r+b") as stream:
        stream.seek(start)
        for chunk in bucket.stream(item, start, min(start + _RANGE_BYTES, item.size)):
            stream.write(chunk)
            made_progress()

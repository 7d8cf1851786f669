"""The files of an artifact in S3: sent where they are not there, compared with the manifest, fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_pipeline.base.errors import Transient
from llm_pipeline.store.manifest import MARKERS, Difference, Manifest, ManifestFile
from llm_pipeline.store.s3_bucket import Bucket, LocalFile, S3Object, Wanted, back_off, in_parallel
from llm_pipeline.store.s3_session import Changed

_ATTEMPTS = 3

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
    try:
        actual = bucket.digest(Wanted(item.name, item.etag))
    except Changed:
        return Difference(file.path, "changed while it was read")
    return None if actual == file.sha256 else Difference(file.path, f"changed: SHA-256 is {actual}, not {file.sha256}")


def upload(bucket: Bucket, name: str, source: Path, files: Sequence[ManifestFile]) -> None:
    """Bring an artifact's files to S3; those that are right there already stay as they are.

    Raises:
        Transient: S3 did not take them; the files that it took are not sent again by the next attempt.
    """

    def holds(file: ManifestFile) -> bool:
        """By what its uploader wrote beside it, and S3's own checksum."""
        there = bucket.head(f"{name}/{file.path}")
        if there is None or there.item.size != file.size or there.claimed != file.sha256:
            return False
        return there.sha256 is not None and (there.parts > 0 or there.sha256 == file.sha256)

    for attempt in range(_ATTEMPTS):
        held = in_parallel(holds, files)
        missing = [file for file, there in zip(files, held, strict=True) if not there]
        try:
            bucket.upload({f"{name}/{file.path}": LocalFile(source / file.path, file.sha256) for file in missing})
        except Transient:  # a broken answer; or another publisher has ended, and aborted what was under way
            if attempt == _ATTEMPTS - 1:
                raise
            back_off(attempt)
        else:
            return


def download(bucket: Bucket, objects: Objects, files: Sequence[ManifestFile], directory: Path) -> None:
    """Fetch files into a directory; their hashes are for the caller to check.

    Raises:
        Changed: An object was replaced while it was read.
        Transient: S3 gives no answer.
        OSError: The directory cannot be written to.
    """
    wanted = {file.path: objects[file.path] for file in files}
    bucket.download({directory / path: Wanted(item.name, item.etag) for path, item in wanted.items()})

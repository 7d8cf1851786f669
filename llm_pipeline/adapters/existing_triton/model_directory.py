"""The versions of one model in the repository that a running server reads: a directory or a bucket.

No other version is changed. A server with explicit model control reads a version only when told to load it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from llm_pipeline.base.directory_listing import walk_files
from llm_pipeline.base.durable import sync_file_system
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.s3_place import S3Place
from llm_pipeline.serving.triton_runtime import link_repository


class ModelDirectory(Protocol):
    """The versions of one model in a repository."""

    def versions(self) -> tuple[int, ...]:
        """The versions that are there, in order."""
        ...

    def add(self, version: int, source: Path, links: Mapping[str, Path]) -> None:
        """Add a version.

        Args:
            version: Its number, which is free.
            source: Directory with the version's files.
            links: Directories from elsewhere, by their place in it.

        Raises:
            ConfigError: The repository cannot be written.
        """
        ...

    def remove(self, version: int) -> None:
        """Remove a version, if it exists, and the model if it was the last one and nothing else is there."""
        ...


class LocalModelDirectory:
    """A model in a directory of this host, or one that is mounted here.

    Args:
        path: `<repository>/<model>`.
        link: Whether versions are links to their files instead of copies.
    """

    def __init__(self, path: Path, *, link: bool) -> None:
        self._path = path
        self._link = link

    def versions(self) -> tuple[int, ...]:
        if not self._path.is_dir():
            return ()
        return tuple(sorted(int(entry.name) for entry in self._path.iterdir() if entry.name.isdecimal()))

    def add(self, version: int, source: Path, links: Mapping[str, Path]) -> None:
        partial = self._path / f".{version}.partial"  # no number: the server ignores it
        try:
            if not self._path.parent.is_dir():
                raise FileNotFoundError("there is no such repository here")
            self._path.mkdir(exist_ok=True)
            if self._link:
                link_repository(source.absolute(), partial, links)
            else:
                _copy(source, partial, links)
            # A file in this place keeps Python from writing bytecode: Triton loads a version anew whose files changed.
            (partial / "__pycache__").touch()
            sync_file_system(partial)
            partial.rename(self._path / str(version))
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise ConfigError(
                f"the server's repository cannot be written: {error}",
                where=str(self._path),
                hint="name the repository that the server reads, as this host sees it",
            ) from error

    def remove(self, version: int) -> None:
        for name in (str(version), f".{version}.partial"):
            shutil.rmtree(self._path / name, ignore_errors=True)
        with suppress(OSError):  # it holds other versions, or is not there
            self._path.rmdir()


class S3ModelDirectory:
    """A model below a prefix of a bucket. Uploads are multipart where they are large.

    Args:
        uri: `s3://bucket/prefix` of the repository.
        model: The model's name.
        endpoint: URL of another S3 API than Amazon's.

    Raises:
        Unsupported: boto3 is not installed in this interpreter.
    """

    def __init__(self, uri: str, model: str, endpoint: str | None) -> None:
        from llm_pipeline.store.s3_session import require_boto3

        self._config = S3Place(uri=uri, endpoint=endpoint)
        require_boto3(self._config)
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        self._bucket = bucket
        self._prefix = f"{PurePosixPath(prefix) / model}/".removeprefix("./")

    def versions(self) -> tuple[int, ...]:
        with self._translated():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
            )
            names = [
                entry["Prefix"].removeprefix(self._prefix) for page in pages for entry in page.get("CommonPrefixes", ())
            ]
        return tuple(sorted(int(name.rstrip("/")) for name in names if name.rstrip("/").isdecimal()))

    def add(self, version: int, source: Path, links: Mapping[str, Path]) -> None:
        from boto3.s3.transfer import S3Transfer

        with self._translated():
            transfers = S3Transfer(self._client)
            for place, directory in (("", source), *links.items()):
                for file in (path for path in walk_files(directory) if path.is_file()):
                    key = PurePosixPath(str(version), place, file.relative_to(directory).as_posix())
                    transfers.upload_file(str(file), self._bucket, f"{self._prefix}{key}")

    def remove(self, version: int) -> None:
        with self._translated():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{version}/"
            )
            for page in pages:
                if keys := [{"Key": entry["Key"]} for entry in page.get("Contents", ())]:
                    self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys})

    @cached_property
    def _client(self) -> Any:
        from llm_pipeline.store.s3_session import connect

        return connect(self._config)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        from llm_pipeline.store.s3_session import translated

        try:
            yield
        except (BotoCoreError, ClientError, Boto3Error) as error:
            raise translated(error, self._config, f"s3://{self._bucket}/{self._prefix}") from error


def open_model_directory(repository: str, model: str, *, link: bool, s3_endpoint: str | None = None) -> ModelDirectory:
    """The versions of a model in a repository: a directory, or `s3://bucket/prefix`."""
    if repository.startswith("s3://"):
        return S3ModelDirectory(repository, model, s3_endpoint)
    return LocalModelDirectory(Path(repository) / model, link=link)


def _copy(source: Path, destination: Path, links: Mapping[str, Path]) -> None:
    shutil.rmtree(destination, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, destination, ignore=ignored, copy_function=shutil.copyfile)
    for place, linked in links.items():
        shutil.copytree(linked, destination / place, copy_function=shutil.copyfile)

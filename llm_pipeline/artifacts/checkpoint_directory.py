"""The check of a model's directory right before a loader opens it, whoever made it: download, export, engine, server.

    check_directory(checkpoint)     # raises; then load

It makes sure that what a loader reads is inside the directory: no link leads out of it, no JSON names other files
(`loader_keys`), and the weight index names files beside itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.loader_keys import followed_keys
from llm_pipeline.artifacts.model_files import unsafe_reason
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read, read_object

INDEX_SUFFIX = ".safetensors.index.json"
_LARGE = frozenset({"tokenizer.json", "vocab.json"})
"""Megabytes of tokens; no key of theirs is followed, so they are not parsed at each load."""
_HINT = "remove the key in a copy of the repository and publish that, or choose another model"


def check_directory(directory: Path) -> None:
    """Make sure that loaders find all they read inside a directory.

    Args:
        directory: Of a checkpoint, an engine or a model repository. It may itself be reached through links.

    Raises:
        IntegrityError: A link leads out of it, or a JSON file is malformed or makes loaders read something else; the
            message names the file and the key.
    """
    root = directory.resolve()
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise IntegrityError(
                "a link leads out of the directory", where=f"{directory}/{name}", hint="publish the file itself"
            )
        if path.suffix == ".json" and path.name not in _LARGE:
            where = f"{directory}/{name}"
            check_document(name, read(path, where=where, finite=False), where=where)
            if name.endswith(INDEX_SUFFIX):
                _check_shards(path, where)


def check_document(path: str, document: Any, *, where: str) -> None:
    """Make sure that a JSON file, at that path of a model's repository, makes loaders read nothing else.

    Raises:
        IntegrityError: A key of it does.
    """
    if found := followed_keys(path, document):
        listing = "; ".join(str(key) for key in found[:4])
        raise IntegrityError(f"it makes loaders read files that were not checked: {listing}", where=where, hint=_HINT)


def _files(root: Path) -> Iterator[Path]:
    """Files and links below a directory; what cannot be listed is an error, for a loader might still read it."""
    for directory, below, names in os.walk(root, onerror=_raise):
        yield from (Path(directory) / name for name in names)
        yield from (path for name in below if (path := Path(directory) / name).is_symlink())


def _raise(error: OSError) -> None:
    raise error


def _check_shards(index: Path, where: str) -> None:
    weight_map = read_object(index, where=where).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise IntegrityError("not a weight index: weight_map does not name a shard for each tensor", where=where)
    for shard in sorted(set(weight_map.values())):
        if reason := unsafe_reason(shard):
            raise IntegrityError(f"it names a shard outside of the directory, {shard[:200]!r}: {reason}", where=where)

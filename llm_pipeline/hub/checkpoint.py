"""Checks of a downloaded model before anything loads it: headers, index, values and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llm_pipeline.artifacts.checkpoint_directory import check_document
from llm_pipeline.artifacts.model_files import WEIGHTS_SUFFIX
from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.artifacts.safetensors_header import TensorEntry, read_header
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read, read_object
from llm_pipeline.base.logging import get_logger
from llm_pipeline.hub.model_config import check_model_config
from llm_pipeline.hub.sampled_values import check_values

log = get_logger(__name__)

_INDEX_SUFFIX = ".safetensors.index.json"
_INDEX = f"model{_INDEX_SUFFIX}"
_SINGLE_FILE = "model.safetensors"
Headers = Mapping[str, tuple[TensorEntry, ...]]


def check_checkpoint(model: PinnedModel, directory: Path, sampled_values: int) -> None:
    """Check every JSON file and safetensors header, that index and shards agree, the configuration, and some values.

    Raises:
        IntegrityError: Something of it is malformed, contradicts itself, makes loaders read other files, or holds NaN
            or an infinity.
        Unsupported: The configuration asks for code from the repository.
    """
    for file in model.files:
        if file.path.endswith(".json"):
            document = read(directory / file.path, where=file.path, finite=False)
            check_document(file.path, document, where=file.path)
    headers = {
        file.path: read_header(directory / file.path) for file in model.files if file.path.endswith(WEIGHTS_SUFFIX)
    }
    check_model_config(directory / "config.json", _all_tensors(directory, headers))
    for path, header in headers.items():
        check_values(directory / path, header, sampled_values)


def read_tensors(directory: Path) -> dict[str, TensorEntry]:
    """The tensors of all weight files in a directory by name, from their headers alone.

    Raises:
        IntegrityError: There are none, a file is malformed or holds none, a tensor has no values or is in two files,
            or index and shards contradict each other.
    """
    files = sorted(directory.glob(f"*{WEIGHTS_SUFFIX}"))
    return _all_tensors(directory, {path.name: read_header(path) for path in files})


def _all_tensors(directory: Path, headers: Headers) -> dict[str, TensorEntry]:
    _require_loaded(directory, headers)
    places: dict[str, str] = {}
    for path, header in headers.items():
        if not header:
            raise _incomplete(path, "the file holds no tensors")
        if empty := [tensor for tensor in header if 0 in tensor.shape]:
            raise _incomplete(path, f"{empty[0].name[:120]!r} has no values: its shape is {list(empty[0].shape)}")
        if twice := sorted(tensor.name for tensor in header if tensor.name in places):
            raise _incomplete(path, f"{[name[:120] for name in twice[:4]]} are in {places[twice[0]]}, too")
        places |= {tensor.name: path for tensor in header}
    return {tensor.name: tensor for header in headers.values() for tensor in header}


def _require_loaded(directory: Path, headers: Headers) -> None:
    """Every weight file is one that loaders read: some read the whole directory, others only what the index names."""
    for index in sorted(directory.glob(f"*{_INDEX_SUFFIX}")):
        check_index(index, headers)
    loaded = {_SINGLE_FILE}
    if (directory / _INDEX).is_file() and _SINGLE_FILE not in headers:
        loaded = set(_read_index(directory / _INDEX)[0].values())
    if not headers.keys() & loaded:
        raise _incomplete(directory.name, f"there is neither {_SINGLE_FILE} nor {_INDEX}")
    if others := sorted(headers.keys() - loaded):
        raise _incomplete(others[0], f"not every loader reads this file beside {min(loaded)}")


def _incomplete(where: str, problem: str) -> IntegrityError:
    return IntegrityError(problem, where=where, hint="the upload was incomplete or mixed up; choose another revision")


def check_index(index: Path, headers: Headers) -> None:
    """Check that a weight index and the shards that it names say the same.

    `headers` has the tensors of each weights file, by its path.

    Raises:
        IntegrityError: They do not; the message names the tensors or shards.
    """
    weight_map, total_bytes = _read_index(index)
    if not weight_map:
        raise _disagrees(index, "the index names no tensors", [])
    shards = set(weight_map.values())
    if missing := sorted(shards - headers.keys()):
        raise _disagrees(index, "the index names shards that the repository does not have", missing)
    held = [(tensor, shard) for shard in sorted(shards) for tensor in headers[shard]]
    places = {tensor.name: shard for tensor, shard in held}
    if len(places) != len(held):
        twice = sorted({tensor.name for tensor, shard in held if places[tensor.name] != shard})
        raise _disagrees(index, "tensors are in two shards", twice)
    if absent := sorted(name for name, shard in weight_map.items() if places.get(name) != shard):
        raise _disagrees(index, "tensors are not in the shard that the index names", absent)
    if unlisted := sorted(places.keys() - weight_map.keys()):
        raise _disagrees(index, "the index does not list tensors of its shards", unlisted)
    actual = sum(tensor.end - tensor.start for tensor, _ in held)
    if total_bytes is not None and total_bytes != actual:
        log.warning("the index counts other bytes than its tensors have", total_size=total_bytes, bytes=actual)


def _read_index(index: Path) -> tuple[dict[str, str], int | float | None]:
    content = read_object(index, where=index.name)
    try:
        weight_map, metadata = content["weight_map"], content.get("metadata") or {}
        total_bytes = metadata.get("total_size")
    except (KeyError, AttributeError) as error:
        raise IntegrityError(f"not a weight index: {error}", where=index.name) from error
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise IntegrityError("not a weight index: weight_map does not name a shard for each tensor", where=index.name)
    if total_bytes is not None and not isinstance(total_bytes, (int, float)):
        raise IntegrityError("not a weight index: total_size is not a number", where=index.name)
    return weight_map, total_bytes


def _disagrees(index: Path, problem: str, names: list[str]) -> IntegrityError:
    listing = f": {[name[:120] for name in names[:4]]}" if names else ""
    return IntegrityError(
        f"{problem}{listing}", where=index.name, hint="the upload was incomplete; choose another revision"
    )

"""Checks of a downloaded model before anything loads it: headers, index, configuration, and some values.

NaN and infinity are damage that no hash shows when they were uploaded so. Some values of every tensor are read, in runs
of neighbours that are spread evenly over the tensor, the first and the last value always among them: a run costs one
page of the disk, single values would cost one each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from llm_pipeline.artifacts.checkpoint_directory import INDEX_SUFFIX, check_document, shards_of
from llm_pipeline.artifacts.model_files import WEIGHTS_SUFFIX
from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.artifacts.safetensors_header import TensorEntry, read_header
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import read, read_object
from llm_pipeline.base.logging import get_logger

log = get_logger(__name__)

_INDEX = f"model{INDEX_SUFFIX}"
_SINGLE_FILE = "model.safetensors"
Headers = Mapping[str, tuple[TensorEntry, ...]]
_MAXIMUM_BYTES = 10_000_000
_RUN = 64
_RUNS = 64
"""Runs of values that are looked at of each tensor, and values of a run: 4,096 in all."""

_NOT_FINITE = {
    "F16": ("<u2", 0x7C00, 0x7C00),
    "BF16": ("<u2", 0x7F80, 0x7F80),
    "F32": ("<u4", 0x7F80_0000, 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0000),
    "F8_E5M2": ("u1", 0x7C, 0x7C),
    "F8_E4M3": ("u1", 0x7F, 0x7F),  # has no infinity
    "F8_E8M0": ("u1", 0xFF, 0xFF),
}
"""Type of the bits, a mask, and what the bits under it are where a value is not finite: IEEE 754, bfloat16, and FP8 of
https://www.opencompute.org/documents/ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1."""


def check_checkpoint(model: PinnedModel, directory: Path) -> None:
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
    check_layout(directory.name, _indexes(directory), headers)
    check_model_config(directory / "config.json")
    for path, header in headers.items():
        check_values(directory / path, header)


def read_tensors(directory: Path) -> dict[str, TensorEntry]:
    """The tensors of all weight files in a directory by name, from their headers alone.

    Raises:
        IntegrityError: There are none, a file is malformed or holds none, a tensor has no values or is in two files,
            or index and shards contradict each other.
    """
    headers = {path.name: read_header(path) for path in sorted(directory.glob(f"*{WEIGHTS_SUFFIX}"))}
    return check_layout(directory.name, _indexes(directory), headers)


def _indexes(directory: Path) -> dict[str, dict[str, Any]]:
    return {path.name: read_object(path, where=path.name) for path in sorted(directory.glob(f"*{INDEX_SUFFIX}"))}


def check_layout(name: str, indexes: Mapping[str, Mapping[str, Any]], headers: Headers) -> dict[str, TensorEntry]:
    """Check the indexes of a model's weights against their headers, and return its tensors by name.

    Args:
        name: The model's, for errors.
        indexes: Content of each weight index by its path.
        headers: The tensors of each weights file by its path.

    Raises:
        IntegrityError: As `read_tensors`.
    """
    weight_maps = {path: _weight_map(path, index, headers) for path, index in indexes.items()}
    _require_loaded(name, weight_maps, headers)
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


def _require_loaded(name: str, weight_maps: Mapping[str, Mapping[str, str]], headers: Headers) -> None:
    """Every weight file is one that loaders read: some read the whole directory, others only what the index names."""
    loaded = {_SINGLE_FILE}
    if _INDEX in weight_maps and _SINGLE_FILE not in headers:
        loaded = set(weight_maps[_INDEX].values())
    if not headers.keys() & loaded:
        raise _incomplete(name, f"there is neither {_SINGLE_FILE} nor {_INDEX}")
    if others := sorted(headers.keys() - loaded):
        raise _incomplete(others[0], f"not every loader reads this file beside {min(loaded)}")


def _incomplete(where: str, problem: str) -> IntegrityError:
    return IntegrityError(problem, where=where, hint="the upload was incomplete or mixed up; choose another revision")


def _weight_map(path: str, index: Mapping[str, Any], headers: Headers) -> Mapping[str, str]:
    """The shard of each tensor by an index, which says the same as the shards that it names."""
    weight_map = shards_of(index, path)
    if not weight_map:
        raise _incomplete(path, "the index names no tensors")
    shards = set(weight_map.values())
    if missing := sorted(shards - headers.keys()):
        raise _disagrees(path, "the index names shards that the repository does not have", missing)
    held = [(tensor.name, shard) for shard in sorted(shards) for tensor in headers[shard]]
    places = dict(held)
    if twice := sorted({tensor for tensor, shard in held if places[tensor] != shard}):
        raise _disagrees(path, "tensors are in two shards", twice)
    if absent := sorted(tensor for tensor, shard in weight_map.items() if places.get(tensor) != shard):
        raise _disagrees(path, "tensors are not in the shard that the index names", absent)
    if unlisted := sorted(places.keys() - weight_map.keys()):
        raise _disagrees(path, "the index does not list tensors of its shards", unlisted)
    return weight_map


def _disagrees(index: str, problem: str, names: list[str]) -> IntegrityError:
    return _incomplete(index, f"{problem}: {[name[:120] for name in names[:4]]}")


def check_model_config(path: Path) -> None:
    """Check that a `config.json` names a model class; whether it fits the tensors is judged by the model's facts.

    Raises:
        IntegrityError: It is not a JSON object, or names no architecture.
    """
    config = read_object(path, where=path.name, maximum_bytes=_MAXIMUM_BYTES, finite=False)
    if named := config.get("auto_map"):  # also in models that transformers has classes of its own for
        log.warning(
            "the model names code of its repository, which was not fetched and is never run: the installed "
            "transformers must know this kind of model by itself",
            auto_map=str(next(iter(named.values()), "") if isinstance(named, dict) else named)[:120],
            model_type=str(config.get("model_type", ""))[:120],
        )
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise IntegrityError("architectures does not name a model class", where=path.name, hint="do not load it")


def check_values(path: Path, tensors: Sequence[TensorEntry]) -> None:
    """Look at some values of each floating-point tensor of a safetensors file, or at all if it has no more.

    Args:
        path: The file.
        tensors: Its tensors, from `read_header`: in the order of their bytes, the last one at the file's end.

    Raises:
        IntegrityError: One is NaN or an infinity; the message names the tensor.
    """
    import numpy as np  # here: it loads slowly, and most that read tensors' headers look at no value

    buffer_start = path.stat().st_size - max((tensor.end for tensor in tensors), default=0)
    for tensor in tensors:
        size = prod(tensor.shape)
        if tensor.dtype not in _NOT_FINITE or not size:
            continue
        bits, mask, equal = _NOT_FINITE[tensor.dtype]
        kind = np.dtype(bits)
        values = np.memmap(path, kind, "r", buffer_start + tensor.start, (size,))
        if size > _RUN * _RUNS:
            firsts = np.linspace(0, size - _RUN, _RUNS).astype(np.int64)
            values = values[firsts[:, None] + np.arange(_RUN)]
        if ((values & kind.type(mask)) == kind.type(equal)).any():
            problem = f"tensor {tensor.name[:120]!r} holds NaN or an infinity"
            raise IntegrityError(problem, where=path.name, hint="use another revision")

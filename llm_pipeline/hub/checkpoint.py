"""Checks of a downloaded model before anything loads it: headers, index, configuration, and some values.

NaN and infinity are damage that no hash shows when they were uploaded so. Some values of every tensor are read, in runs
of neighbours that are spread evenly over the tensor, the first and the last value always among them: a run costs one
page of the disk, single values would cost one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from llm_pipeline.artifacts.checkpoint_directory import INDEX_SUFFIX, check_document
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
_SAMPLED_VALUES = 4096
"""Of each tensor."""


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
    _tensors_in(directory, headers)
    check_model_config(directory / "config.json")
    for path, header in headers.items():
        check_values(directory / path, header, _SAMPLED_VALUES)


def read_tensors(directory: Path) -> dict[str, TensorEntry]:
    """The tensors of all weight files in a directory by name, from their headers alone.

    Raises:
        IntegrityError: There are none, a file is malformed or holds none, a tensor has no values or is in two files,
            or index and shards contradict each other.
    """
    files = sorted(directory.glob(f"*{WEIGHTS_SUFFIX}"))
    return _tensors_in(directory, {path.name: read_header(path) for path in files})


def check_layout(name: str, indexes: Mapping[str, Mapping[str, Any]], headers: Headers) -> None:
    """Check what is known of a model before it is fetched: the indexes of its weights against their headers.

    Args:
        name: The model's, for errors.
        indexes: Content of each weight index by its path.
        headers: As `check_index` takes them.

    Raises:
        IntegrityError: As `read_tensors`.
    """
    weight_maps = {path: _check_weight_map(f"{name}: {path}", index, headers)[0] for path, index in indexes.items()}
    _all_tensors(name, weight_maps, headers)


def _tensors_in(directory: Path, headers: Headers) -> dict[str, TensorEntry]:
    indexes = sorted(directory.glob(f"*{INDEX_SUFFIX}"))
    return _all_tensors(directory.name, {index.name: check_index(index, headers) for index in indexes}, headers)


def _all_tensors(name: str, weight_maps: Mapping[str, Mapping[str, str]], headers: Headers) -> dict[str, TensorEntry]:
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


def check_index(index: Path, headers: Headers) -> Mapping[str, str]:
    """Check that a weight index and the shards that it names say the same, and return the shard of each tensor.

    `headers` has the tensors of each weights file, by its path.

    Raises:
        IntegrityError: They do not; the message names the tensors or shards.
    """
    weight_map, total_bytes = _check_weight_map(index.name, read_object(index, where=index.name), headers)
    actual = sum(tensor.end - tensor.start for shard in set(weight_map.values()) for tensor in headers[shard])
    if total_bytes is not None and total_bytes != actual:
        log.warning("the index states another size than its tensors have", total_size=total_bytes, bytes=actual)
    return weight_map


def _check_weight_map(
    name: str, index: Mapping[str, Any], headers: Headers
) -> tuple[Mapping[str, str], int | float | None]:
    weight_map, total_bytes = _read_index(name, index)
    if not weight_map:
        raise _disagrees(name, "the index names no tensors", [])
    shards = set(weight_map.values())
    if missing := sorted(shards - headers.keys()):
        raise _disagrees(name, "the index names shards that the repository does not have", missing)
    held = [(tensor, shard) for shard in sorted(shards) for tensor in headers[shard]]
    places = {tensor.name: shard for tensor, shard in held}
    if len(places) != len(held):
        twice = sorted({tensor.name for tensor, shard in held if places[tensor.name] != shard})
        raise _disagrees(name, "tensors are in two shards", twice)
    if absent := sorted(tensor for tensor, shard in weight_map.items() if places.get(tensor) != shard):
        raise _disagrees(name, "tensors are not in the shard that the index names", absent)
    if unlisted := sorted(places.keys() - weight_map.keys()):
        raise _disagrees(name, "the index does not list tensors of its shards", unlisted)
    return weight_map, total_bytes


def _read_index(name: str, content: Mapping[str, Any]) -> tuple[dict[str, str], int | float | None]:
    try:
        weight_map, metadata = content["weight_map"], content.get("metadata") or {}
        total_bytes = metadata.get("total_size")
    except (KeyError, AttributeError) as error:
        raise IntegrityError(f"not a weight index: {error}", where=name) from error
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise IntegrityError("not a weight index: weight_map does not name a shard for each tensor", where=name)
    if total_bytes is not None and not isinstance(total_bytes, (int, float)):
        raise IntegrityError("not a weight index: total_size is not a number", where=name)
    return weight_map, total_bytes


def _disagrees(index: str, problem: str, names: list[str]) -> IntegrityError:
    listing = f": {[name[:120] for name in names[:4]]}" if names else ""
    return IntegrityError(f"{problem}{listing}", where=index, hint="the upload was incomplete; choose another revision")


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


class _Pattern(NamedTuple):
    """A value is not finite when its bits under `mask` are `equal`."""

    bits: str
    mask: int
    equal: int


_NOT_FINITE = {
    "F16": _Pattern("<u2", 0x7C00, 0x7C00),
    "BF16": _Pattern("<u2", 0x7F80, 0x7F80),
    "F32": _Pattern("<u4", 0x7F80_0000, 0x7F80_0000),
    "F64": _Pattern("<u8", 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0000),
    "F8_E5M2": _Pattern("u1", 0x7C, 0x7C),
    "F8_E4M3": _Pattern("u1", 0x7F, 0x7F),  # has no infinity
    "F8_E5M2FNUZ": _Pattern("u1", 0xFF, 0x80),  # the only NaN, where others have minus zero; no infinity
    "F8_E4M3FNUZ": _Pattern("u1", 0xFF, 0x80),
    "F8_E8M0": _Pattern("u1", 0xFF, 0xFF),
}
"""IEEE 754 and bfloat16; FP8 of the Open Compute Project (https://www.opencompute.org/documents/
ocp-8-bit-floating-point-specification-ofp8-revision-1-0-2023-12-01-pdf-1) and its variants without signed zero."""


def check_values(path: Path, tensors: Sequence[TensorEntry], count: int) -> None:
    """Look at about `count` values of each floating-point tensor of a safetensors file.

    Args:
        path: The file.
        tensors: Its tensors, from `read_header`: in the order of their bytes, the last one at the file's end.
        count: Values of each tensor; smaller tensors are read whole.

    Raises:
        IntegrityError: One is NaN or an infinity; the message names the tensor.
    """
    if not tensors:
        return
    buffer_start = path.stat().st_size - tensors[-1].end
    with path.open("rb", buffering=0) as stream:
        for tensor in tensors:
            pattern = _NOT_FINITE.get(tensor.dtype)
            if pattern is not None and _has_not_finite(stream, tensor, pattern, buffer_start, count):
                raise IntegrityError(
                    f"tensor {tensor.name[:120]!r} holds NaN or an infinity",
                    where=path.name,
                    hint="use another revision",
                )


def _has_not_finite(stream: BinaryIO, tensor: TensorEntry, pattern: _Pattern, buffer_start: int, count: int) -> bool:
    import numpy as np  # here: it loads slowly, and most that read tensors' headers look at no value

    kind = np.dtype(pattern.bits)
    for first, length in runs(prod(tensor.shape), count):
        stream.seek(buffer_start + tensor.start + first * kind.itemsize)
        values = np.frombuffer(stream.read(length * kind.itemsize), kind)
        if ((values & kind.type(pattern.mask)) == kind.type(pattern.equal)).any():
            return True
    return False


def runs(size: int, count: int) -> Iterator[tuple[int, int]]:
    """First value and length of each run: `count` of `size` values, or all of them when there are no more.

    The first run starts at value 0 and the last one ends with the last value.
    """
    if size <= max(count, 2):
        if size:
            yield 0, size
        return
    length = max(1, min(_RUN, count // 2))
    number = max(2, count // length)
    for index in range(number):
        yield index * (size - length) // (number - 1), length

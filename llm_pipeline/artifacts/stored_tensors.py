"""The tensors of a checkpoint as they are stored, each read only when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from llm_pipeline.artifacts.checkpoint_files import read_json
from llm_pipeline.base.errors import IntegrityError, unless_io

_KINDS = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8, "I8": torch.int8, "I32": torch.int32, "I64": torch.int64, "BOOL": torch.bool,
}  # fmt: skip
_ROWS_COMPARED = 4096


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint by name, each read from its file to the device only when it is used.

    Raises:
        IntegrityError: No safetensors file, a damaged one, or one that the index lists and the directory lacks.
    """

    def __init__(self, source: Path, device: str = "cpu") -> None:
        self.device = device
        self._files: dict[str, Any] = {}
        for file in _weight_files(source):
            try:
                opened = safe_open(source / file, framework="pt", device=device)
            except (OSError, SafetensorError) as error:
                raise unless_io(
                    error, IntegrityError(f"unreadable weights: {error}", where=str(source / file))
                ) from error
            self._files |= dict.fromkeys(opened.keys(), opened)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._files[key].get_tensor(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def unread(self, key: str) -> Any:
        """A tensor that is not read yet: `[...]` reads it."""
        return self._files[key].get_slice(key)

    def shape(self, key: str) -> tuple[int, ...]:
        """A tensor's shape, from the file's header."""
        return tuple(self.unread(key).get_shape())

    def same_values(self, one: str, other: str) -> bool:
        """Whether two tensors of one shape hold the same numbers, whatever their types; compared piece by piece."""
        left, right = self.unread(one), self.unread(other)
        rows = self.shape(one)[0] if self.shape(one) else 0
        if not rows:
            return bool(torch.equal(left[...].float(), right[...].float()))
        pieces = (slice(start, start + _ROWS_COMPARED) for start in range(0, rows, _ROWS_COMPARED))
        return all(torch.equal(left[piece].float(), right[piece].float()) for piece in pieces)

    def kind(self, key: str) -> torch.dtype:
        """A tensor's type, from the file's header.

        Raises:
            IntegrityError: No tensor of a language model has this type.
        """
        name = self.unread(key).get_dtype()
        if name not in _KINDS:
            raise IntegrityError(f"a tensor of type {name}", where=key)
        return _KINDS[name]


def _weight_files(source: Path) -> list[str]:
    index = source / "model.safetensors.index.json"
    if not index.exists():
        return ["model.safetensors"]
    return sorted({str(file) for file in read_json(index).get("weight_map", {}).values()})

"""The state that a calibration produced, as files: safetensors and JSON, without the weights.

    state.save(directory)
    CalibrationState.load(directory).restore(model)      # a freshly loaded model, ready for export

A state of an AutoQuantize search holds the quantizers of every format, each calibrated in its own way, and the scores;
`restore` is then told which layer takes which format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from llm_pipeline.base.digest import canonical_json
from llm_pipeline.base.durable import sync_file_system
from llm_pipeline.base.errors import IntegrityError, unless_io
from llm_pipeline.quantization.plain_data import from_json, to_json
from llm_pipeline.quantization.quantizer_state import QuantizerState, rescale, restore

_FORMAT = 1
_DESCRIPTION, _TENSORS = "calibration.json", "calibration.safetensors"
_QUANTIZERS, _RESCALED, _WEIGHTS = "quantizers", "rescaled", "weights"


@dataclass(frozen=True)
class CalibrationState:
    """Everything that has to be known to make a calibrated model of a plain checkpoint again.

    Attributes:
        quantizers: State of the quantizers by format; one entry, named after the recipe's format, without a search.
        rescaled: Factors that were multiplied into the columns of weights: fp32 [times, in], by layer.
        weights: Weights that an algorithm changed in any other way, as they are now, by name; most change none.
        search: Scores of an AutoQuantize search; None without.
    """

    quantizers: Mapping[str, QuantizerState]
    rescaled: Mapping[str, torch.Tensor] = field(default_factory=dict)
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    search: Mapping[str, JsonValue] | None = None

    def restore(self, model: nn.Module) -> None:
        """Make a freshly loaded model the calibrated one, bit for bit; for states without a search."""
        (quantizers,) = self.quantizers.values()
        with torch.no_grad():
            for name, weight in self.weights.items():
                model.get_parameter(name).copy_(weight)
        if not self.weights:
            rescale(model, self.rescaled)
        restore(model, quantizers)

    def save(self, directory: Path) -> None:
        """Write the state to a new directory; it is there only when it is whole."""
        partial = directory.with_name(f"{directory.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        tensors = {
            f"{_QUANTIZERS}/{name}/{key}": tensor
            for name, state in self.quantizers.items()
            for key, tensor in state.tensors.items()
        }
        tensors |= {f"{_RESCALED}/{name}": tensor for name, tensor in self.rescaled.items()}
        tensors |= {f"{_WEIGHTS}/{name}": tensor for name, tensor in self.weights.items()}
        save_file(tensors, partial / _TENSORS)
        description: dict[str, Any] = {
            "format": _FORMAT,
            "quantizers": {name: to_json(dict(state.properties)) for name, state in self.quantizers.items()},
            "search": None if self.search is None else dict(self.search),
        }
        (partial / _DESCRIPTION).write_bytes(canonical_json(description))
        sync_file_system(partial)
        partial.rename(directory)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the state that `save` wrote.

        Raises:
            IntegrityError: It is damaged, or written by another version of this package.
        """
        try:
            description = json.loads((directory / _DESCRIPTION).read_bytes())
            if description["format"] != _FORMAT:
                raise IntegrityError(f"a calibration of format {description['format']}", where=str(directory))
            tensors = load_file(directory / _TENSORS)
            return cls(
                quantizers={
                    name: QuantizerState(from_json(properties), _below(tensors, f"{_QUANTIZERS}/{name}/"))
                    for name, properties in description["quantizers"].items()
                },
                rescaled=_below(tensors, f"{_RESCALED}/"),
                weights=_below(tensors, f"{_WEIGHTS}/"),
                search=description["search"],
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise unless_io(
                error, IntegrityError(f"unreadable calibration: {error!r}", where=str(directory))
            ) from error


def _below(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}

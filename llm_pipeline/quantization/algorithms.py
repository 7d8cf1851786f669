"""modelopt's calibration algorithms: what they change, and how much memory they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RESCALING = {None, "max", "mse", "local_hessian", "smoothquant", "awq_lite", "awq_full", "awq_clip"}
"""They rescale columns of weights, or change no weight at all."""
_GROWTH = {"smoothquant": 2.0, "awq_lite": 3.0, "awq_full": 3.0, "awq_clip": 3.0}
_GROWTH_OF_OTHERS = 1.5
_GROWTH_OF_SEARCH = 8.0


def only_rescales(config: Mapping[str, Any]) -> bool:
    """Whether the calibrated weights follow from the plain ones by factors of their columns; else they are kept."""
    return _RESCALING.issuperset(_algorithms(config))


def memory_growth(config: Mapping[str, Any] | None) -> float:
    """Memory that a sequence takes while it calibrates, by what it takes in a plain forward pass.

    Args:
        config: modelopt's configuration; None for a search.
    """
    if config is None:
        return _GROWTH_OF_SEARCH
    return max(_GROWTH.get(str(name), _GROWTH_OF_OTHERS) for name in _algorithms(config))


def _algorithms(config: Mapping[str, Any]) -> list[str | None]:
    """Names of the algorithms of a configuration, one after the other."""
    given = config.get("algorithm")
    every = given if isinstance(given, list) else [given]
    return [one.get("method") if isinstance(one, dict) else one for one in every]

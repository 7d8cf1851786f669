"""Where Transformers' loader puts the tensors of a checkpoint: its own code, run on tensors without memory.

The names in a file are not those of the model's modules: prefixes come and go, old names live on, and Transformers 5
stacks the matrices of experts into one. Transformers 4 has no such conversions; there, only prefixes differ.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

Shape = tuple[int, ...]
_Groups = Mapping[tuple[str, str | None], list[str]]


@dataclass(frozen=True)
class Placement:
    """What the loader makes of a checkpoint's tensors.

    Attributes:
        missing: The model's tensors that nothing gives; a tied one is given where any of those it is tied to is.
        unexpected: Tensors that have no place in the model.
        misshaped: The model's tensor, the shape that is stored, and its own.
        inconvertible: The model's tensors that the stored ones cannot be put together to.
        repeated: Tensors of the checkpoint that have the same place as another one.
        gaps: Tensors of a numbered series, as experts are, that does not count from 0 without gaps.
        floats: Tensors of the checkpoint whose place is one of floating point numbers.
        stored_ties: Pairs of the checkpoint's tensors that the model ties.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshaped: tuple[tuple[str, Shape, Shape], ...]
    inconvertible: tuple[str, ...]
    repeated: tuple[str, ...]
    gaps: tuple[str, ...]
    floats: tuple[str, ...]
    stored_ties: tuple[tuple[str, str], ...]


def place(model: Any, shapes: Mapping[str, Shape]) -> Placement:
    """Put tensors of these shapes into a model on the meta device, which is of no use afterwards.

    Args:
        model: From `from_config` on the meta device.
        shapes: Of the checkpoint's tensors, by name; of packed weights, the matrices that they stand for.
    """
    own, ties = dict(model.state_dict()), _ties(model)
    groups, loaded = _load(model, own, shapes)
    known = {key: names for key, names in groups.items() if key[0] in own}
    missing, unexpected, misshaped, inconvertible = loaded
    first = {target: names[0] for (target, _), names in known.items()}
    return Placement(
        missing=tuple(sorted(name for name in missing if not ties.get(name, set()) - missing)),
        unexpected=tuple(sorted(unexpected)),
        misshaped=tuple(sorted((name, tuple(found), tuple(wanted)) for name, found, wanted in misshaped)),
        inconvertible=tuple(sorted(inconvertible)),
        repeated=tuple(sorted(name for key, names in known.items() if not _is_series(key[1]) for name in names[1:])),
        gaps=tuple(sorted(name for key, names in known.items() if _is_series(key[1]) for name in _beyond_gap(names))),
        floats=tuple(name for (target, _), names in known.items() if own[target].is_floating_point() for name in names),
        stored_ties=tuple(
            sorted((first[min(group & first.keys())], first[name])
                   for name, group in ties.items()
                   if name in first and name != min(group & first.keys()))
        ),
    )  # fmt: skip


def _ties(model: Any) -> dict[str, set[str]]:
    """Each tied tensor of the model with all that are the same, itself too."""
    groups: dict[Any, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups[id(parameter)].add(name)
    for target, source in getattr(model, "all_tied_weights_keys", {}).items():
        groups[source] |= {target, source}
    ties: dict[str, set[str]] = {}
    for group in groups.values():
        if len(group) > 1:
            whole = group.union(*(ties.get(name, set()) for name in group))
            ties |= dict.fromkeys(whole, whole)
    return ties


_Loaded = tuple[set[str], set[str], set[tuple[str, Shape, Shape]], set[str]]


def _load(model: Any, own: Mapping[str, torch.Tensor], shapes: Mapping[str, Shape]) -> tuple[_Groups, _Loaded]:
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            convert_and_load_state_dict_in_model,
            rename_source_key,
        )
        from transformers.modeling_utils import LoadStateDictConfig
    except ImportError:  # Transformers 4
        return _load_by_name(model, own, shapes)
    mapping, prefix = get_model_conversion_mapping(model), model.base_model_prefix
    renamings = [step for step in mapping if isinstance(step, WeightRenaming)]
    converters = [step for step in mapping if isinstance(step, WeightConverter)]
    groups: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    for name in shapes:
        place_of = rename_source_key(name, renamings, converters, prefix, own)
        if place_of[0] not in own and name in own:
            place_of = rename_source_key(name, [], [], prefix, own)
        groups[place_of].append(name)
    empty = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in shapes.items()}
    settings = LoadStateDictConfig(device_map={"": "meta"}, dtype=torch.bfloat16, weight_mapping=mapping)
    transformers_logging.disable_progress_bar()
    older = "tp_plan" in signature(convert_and_load_state_dict_in_model).parameters  # required up to Transformers 5.14
    report, _ = convert_and_load_state_dict_in_model(model, empty, settings, **({"tp_plan": None} if older else {}))
    return groups, (
        report.missing_keys, report.unexpected_keys, report.mismatched_keys, set(report.conversion_errors)
    )  # fmt: skip


def _load_by_name(model: Any, own: Mapping[str, torch.Tensor], shapes: Mapping[str, Shape]) -> tuple[_Groups, _Loaded]:
    """As Transformers 4 does, whose modules have the names of the files but for the base model's prefix."""
    prefix = f"{model.base_model_prefix}."
    groups: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    misshaped: set[tuple[str, Shape, Shape]] = set()
    for name, shape in shapes.items():
        target = next((one for one in (name, prefix + name, name.removeprefix(prefix)) if one in own), name)
        groups[target, None].append(name)
        if target in own and tuple(own[target].shape) != tuple(shape):
            misshaped.add((target, shape, tuple(own[target].shape)))
    found = {target for target, _ in groups}
    return groups, (set(own) - found, found - set(own), misshaped, set())


def _is_series(pattern: str | None) -> bool:
    return pattern is not None and "*" in pattern


def _beyond_gap(names: Iterable[str]) -> list[str]:
    """Of names that differ in one number: those whose number is not below how many there are."""
    numbered = {name: tuple(map(int, re.findall(r"\d+", name))) for name in names}
    differing = [column for column in zip(*numbered.values(), strict=False) if len(set(column)) > 1]
    if len(differing) != 1:
        return []
    return [name for name, number in zip(numbered, differing[0], strict=True) if number >= len(numbered)]

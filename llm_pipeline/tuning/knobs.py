"""The few settings of a target that decide how much traffic it holds. Pure.

A setting is named by its path in the target file, e.g. `limits.maximum_sequences`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llm_pipeline.config.target import Target

Value = int | float | str
Settings = Mapping[str, Value]

Trouble = Literal["out of memory", "preemption", "failed"]
"""Why a trial could not be measured, or its result not be trusted."""

_FRACTIONS = (0.7, 0.8, 0.85, 0.9, 0.95)


@dataclass(frozen=True)
class Knob:
    """One setting and the values beside it.

    Attributes:
        path: Where it is in the target.
        neighbours: The values to try next to a value, the more promising first.
        relieves: Troubles that a smaller value is likely to end.
    """

    path: str
    neighbours: Callable[[Value], Sequence[Value]]
    relieves: frozenset[Trouble] = frozenset()


def knobs_of(target: Target, *, most_threads: int) -> tuple[Knob, ...]:
    """The knobs of a target's engine, the most decisive one first.

    Args:
        target: The target.
        most_threads: Processors of the host, for engines that compute on them.
    """
    memory: frozenset[Trouble] = frozenset({"out of memory"})
    knobs = [
        Knob("limits.maximum_sequences", _doubled(1, 2048), memory | {"preemption"}),
        Knob("limits.maximum_batched_tokens", _doubled(64, 65_536), memory),
    ]
    if target.engine == "openvino_cpu":
        threads = Knob("limits.threads", lambda value: _within((int(value) + 1, int(value) - 1), 1, most_threads))
        blocks = (
            [Knob("limits.kv_cache_blocks", _doubled(16, 1 << 20), memory)] if target.limits.kv_cache_blocks else []
        )
        return (*knobs, threads, *blocks)
    knobs.append(Knob("runtime.kv_cache.free_memory_fraction", _next_fractions, memory))
    if target.engine.startswith("tensorrt_llm"):
        knobs.append(Knob("runtime.scheduler", _other_scheduler, frozenset({"preemption"})))
    if target.engine == "tensorrt_llm_engine":
        knobs.append(Knob("serving.bls_instances", _doubled(1, 256)))
    return tuple(knobs)


def settings_of(target: Target, knobs: Sequence[Knob]) -> dict[str, Value]:
    """The values of the knobs in a target."""
    return {knob.path: _read(target, knob.path) for knob in knobs}


def with_settings(target: Target, settings: Settings) -> Target:
    """The target with other settings, checked.

    Raises:
        ValidationError: A value is not legal.
    """
    document = target.model_dump(mode="json")
    for path, value in settings.items():
        *parents, last = path.split(".")
        place: dict[str, Any] = document
        for name in parents:
            place = place[name]
        place[last] = value
    return Target.model_validate(document)


def changed(before: Settings, after: Settings) -> str:
    """What differs, in words: `limits.maximum_sequences 32 -> 64`."""
    words = [f"{path} {before[path]} -> {value}" for path, value in after.items() if value != before[path]]
    return ", ".join(words) or "nothing"


def _read(target: Target, path: str) -> Value:
    value: Any = target
    for name in path.split("."):
        value = getattr(value, name)
    read: Value = value
    return read


def _doubled(least: int, most: int) -> Callable[[Value], Sequence[Value]]:
    return lambda value: _within((2 * int(value), int(value) // 2), least, most)


def _within(values: Sequence[int], least: int, most: int) -> Sequence[Value]:
    return [value for value in values if least <= value <= most]


def _next_fractions(value: Value) -> Sequence[Value]:
    current = float(value)
    above = [fraction for fraction in _FRACTIONS if fraction > current]
    below = [fraction for fraction in _FRACTIONS if fraction < current]
    return [*above[:1], *below[-1:]]


def _other_scheduler(value: Value) -> Sequence[Value]:
    return ["max_utilization" if value == "guaranteed_no_evict" else "guaranteed_no_evict"]

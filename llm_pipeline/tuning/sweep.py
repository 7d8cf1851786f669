"""The search over the few settings of a target that decide how much traffic it holds. Pure.

One knob at a time is turned, from the target as it is, and what is better is kept. If the first trial runs into
trouble, the knobs that relieve it are tried with smaller values. Settings that the memory model refuses are never
tried. A setting is named by its path in the target file, e.g. `limits.maximum_sequences`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter

Value = int | float | str
Settings = Mapping[str, Value]
Trouble = Literal["out of memory", "preemption", "failed"]
"""Why a trial could not be measured, or its result not be trusted."""

_FRACTIONS = (0.7, 0.8, 0.85, 0.9, 0.95)
NOISE = 1.05
"""Smaller gains are ignored: two measurements of one server differ by as much."""


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
    knobs = (
        Knob("limits.maximum_sequences", _doubled(1, 2048), memory | {"preemption"}),
        Knob("limits.maximum_batched_tokens", _doubled(64, 65_536), memory),
        Knob("limits.threads", lambda value: _within((int(value) + 1, int(value) - 1), 1, most_threads)),
        Knob("limits.kv_cache_blocks", _doubled(16, 1 << 20), memory),
        Knob("runtime.kv_cache.free_memory_fraction", _next_fractions, memory),
        Knob("runtime.scheduler", _other_scheduler, frozenset({"preemption"})),
        Knob("serving.bls_instances", _doubled(1, 256)),
    )
    paths = ("limits.maximum_sequences", "limits.maximum_batched_tokens", *engine_adapter(target.engine).tuned)
    return tuple(knob for knob in knobs if knob.path in paths and _read(target, knob.path) is not None)


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


@dataclass(frozen=True)
class Trial:
    """Settings, and the traffic that they sustained.

    Attributes:
        settings: All knobs.
        highest_rate_per_second: Highest rate that met the service level; 0 when none did.
        good_per_second: Good requests a second at the target rate.
        trouble: Why the trial does not count; None if it was measured.
        detail: The line that names the trouble.
        memory_bytes: Most memory that the server took; None where it was not seen.
    """

    settings: dict[str, Value]
    highest_rate_per_second: float = 0.0
    good_per_second: float = 0.0
    trouble: Trouble | None = None
    detail: str = ""
    memory_bytes: int | None = None


@dataclass
class Sweep:
    """A sweep in progress.

    Args:
        knobs: What may be turned.
        measure: Runs one trial.
        fits: Whether the memory model lets settings be tried.
        most_trials: The budget.
    """

    knobs: Sequence[Knob]
    measure: Callable[[Settings], Trial]
    fits: Callable[[Settings], bool]
    most_trials: int
    trials: list[Trial] = field(default_factory=list)

    def run(self, start: Settings) -> Trial:
        """Turn the knobs until no neighbour is better, or the budget is spent; the best trial is returned.

        That is the trial of the current settings, unless another was better by more than noise.
        """
        best = self._try(dict(start))
        while best.trouble and (relieved := self._relieved(best)) is not None:
            best = self._try(relieved)
        improved = True
        while improved and not best.trouble:
            improved = False
            for knob in self.knobs:
                better = self._turn(knob, best)
                improved, best = improved or better is not best, better
        return best

    def _turn(self, knob: Knob, best: Trial) -> Trial:
        """Go on in a direction for as long as it gets better; the other direction only when the first did not."""
        for first in knob.neighbours(best.settings[knob.path]):
            candidate, value = best, first
            rising = _rises(best.settings[knob.path], first)
            while (settings := self._next(candidate, knob, value)) is not None:
                trial = self._try(settings)
                if not _better(trial, candidate):
                    break
                candidate = trial
                onward = [v for v in knob.neighbours(value) if _rises(value, v) == rising and v != first]
                if not onward:
                    break
                value = onward[0]
            if candidate is not best:
                return candidate
        return best

    def _next(self, trial: Trial, knob: Knob, value: Value) -> dict[str, Value] | None:
        settings = {**trial.settings, knob.path: value}
        new = all(settings != earlier.settings for earlier in self.trials)
        return settings if new and len(self.trials) < self.most_trials and self.fits(settings) else None

    def _relieved(self, trial: Trial) -> dict[str, Value] | None:
        """The settings with the first knob turned down that is likely to end the trial's trouble."""
        for knob in self.knobs:
            if trial.trouble not in knob.relieves:
                continue
            current = trial.settings[knob.path]
            for value in knob.neighbours(current):
                smaller = isinstance(value, str) or not _rises(current, value)
                if smaller and (settings := self._next(trial, knob, value)) is not None:
                    return settings
        return None

    def _try(self, settings: dict[str, Value]) -> Trial:
        trial = self.measure(settings)
        self.trials.append(trial)
        return trial


def _better(trial: Trial, than: Trial) -> bool:
    if trial.trouble:
        return False
    if than.highest_rate_per_second or trial.highest_rate_per_second:
        return trial.highest_rate_per_second > NOISE * than.highest_rate_per_second
    return trial.good_per_second > NOISE * than.good_per_second


def _rises(value: Value, other: Value) -> bool:
    return isinstance(value, int | float) and isinstance(other, int | float) and other > value

"""The search over settings: one knob at a time, from the target as it is, keeping what is better. Pure.

If the first trial runs into trouble, the knobs that relieve it are tried with smaller values. Settings that the memory
model refuses are never tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llm_pipeline.tuning.knobs import Knob, Settings, Trouble, Value

NOISE = 1.05
"""Smaller gains are ignored: two measurements of one server differ by as much."""


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

"""What each step of a release will take: time, GPU-hours, and money where the deployment names prices. Pure.

Time is the median of what earlier releases took (`measured`), else a model's (`model`). GPU-hours are those of all GPUs
that a step keeps busy: the target's for its servers, the quantization host's for everything before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.planning.history import History
from llm_pipeline.planning.reuse import Step, StepReuse
from llm_pipeline.release.flow import step_named
from llm_pipeline.release.step import Gpus, Place, Work

_COMPUTED = ("computed", "always")
_HOUR = 3600


class StepCost(Frozen):
    """What one step takes when it is computed.

    Attributes:
        seconds: None where nothing was measured and no model says anything.
        basis: `measured` in earlier releases of this config (the median), or by a `model`; None for no figure.
        measurements: How many releases were measured.
        accelerator: The GPU that it keeps busy; empty for none.
        gpus: How many of them.
        gpu_hours: Of all of them together; None where the time is not known, 0 for a step without GPUs.
        price: In the deployment's currency; None without GPU-hours, or without a price.
    """

    seconds: float | None = None
    basis: Literal["measured", "model"] | None = None
    measurements: int = 0
    accelerator: str = ""
    gpus: int = 0
    gpu_hours: float | None = None
    price: float | None = None


class TotalCost(Frozen):
    """What all steps take that will be computed; every recipe is counted, though a ladder may need fewer.

    Attributes:
        seconds: One step after another.
        gpu_hours: By GPU.
        price: In the deployment's currency; None where a GPU that is needed has no price.
        currency: Three letters.
        not_known: Steps whose time is not known: nothing of them is in the figures.
    """

    seconds: float
    gpu_hours: dict[str, float]
    price: float | None
    currency: str
    not_known: tuple[str, ...]


def check_prices(loaded: LoadedRelease) -> None:
    """Make sure that prices are of GPUs that there are.

    Raises:
        ConfigError: A name is not in the GPU catalog.
    """
    for name in loaded.deployment.gpu_hour_prices:
        try:
            find_gpu(name)
        except ConfigError as error:
            where = f"deployment {loaded.deployment.name}"
            raise ConfigError(f"gpu_hour_prices: {error.message}", where=where, hint=error.hint) from error


def step_costs(
    loaded: LoadedRelease, steps: Sequence[Step], history: History | None, predicted: Mapping[Step, float]
) -> dict[Step, StepCost]:
    """What each step takes when it is computed.

    Args:
        loaded: The release config.
        steps: All steps.
        history: Earlier releases; None where the store could not be read.
        predicted: Seconds by the models.
    """
    return {step: _cost(loaded, step, history, predicted.get(step)) for step in steps}


def total_cost(
    loaded: LoadedRelease, costs: Mapping[Step, StepCost], reuse: Mapping[Step, StepReuse] | None
) -> TotalCost:
    """The sum over the steps that will be computed: all of them, where nothing is known of reuse."""
    due = {step: cost for step, cost in costs.items() if reuse is None or reuse[step].outcome in _COMPUTED}
    hours: dict[str, float] = {}
    for cost in due.values():
        if cost.gpu_hours and cost.accelerator:
            hours[cost.accelerator] = hours.get(cost.accelerator, 0.0) + cost.gpu_hours
    prices = loaded.deployment.gpu_hour_prices
    priced = all(name in prices for name in hours)
    return TotalCost(
        seconds=sum(cost.seconds or 0.0 for cost in due.values()),
        gpu_hours=hours,
        price=sum(hours[name] * prices[name] for name in hours) if priced and prices else None,
        currency=loaded.deployment.currency,
        not_known=tuple(
            " ".join(filter(None, step))
            for step, cost in due.items()
            if cost.seconds is None and not _waits_for_person(step[0])
        ),
    )


def _cost(loaded: LoadedRelease, step: Step, history: History | None, predicted: float | None) -> StepCost:
    measured = history.seconds(*step) if history else ()
    seconds = median(measured) if measured else predicted
    accelerator, gpus = _gpus(loaded, step)
    hours = None if seconds is None else gpus * seconds / _HOUR
    price = loaded.deployment.gpu_hour_prices.get(accelerator)
    return StepCost(
        seconds=seconds,
        basis=None if seconds is None else "measured" if measured else "model",
        measurements=len(measured),
        accelerator=accelerator,
        gpus=gpus,
        gpu_hours=hours,
        price=None if price is None or hours is None else hours * price,
    )


def _gpus(loaded: LoadedRelease, step: Step) -> tuple[str, int]:
    """The GPUs that a step keeps busy."""
    name, subject = step
    found, host = step_named(name), loaded.deployment.quantization_host
    if found is None or found.gpus is Gpus.NONE:
        return "", 0
    if found.place is Place.QUANTIZATION_HOST and host is not None:
        return host.accelerator, host.count
    if found.place is Place.TARGET_HOST:
        target = loaded.release.target(subject.partition(":")[0])
        return ("", 0) if target.accelerator == "cpu" else (target.accelerator, target.accelerator_count)
    return "", 0


def _waits_for_person(name: str) -> bool:
    """Whether how long a step takes is a person's business."""
    step = step_named(name)
    return step is not None and step.work is Work.PERSON

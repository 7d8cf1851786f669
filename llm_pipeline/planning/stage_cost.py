"""The steps that a release will take, and what each costs: time, GPU-hours, and money where prices are named. Pure.

Time is the median of what earlier releases took (`measured`), else a model's (`model`). GPU-hours are those of all GPUs
that a step keeps busy: the target's for its servers, the quantization host's for everything before. The models:

* download: the checkpoint's bytes at the rate that the deployment allows; without a limit, nothing is known.
* baseline, accuracy, served_accuracy: the tokens of the tasks at half of the roofline bound (`planning/speed.py`).
* quantize: reading the weights and writing others, and a pass over the calibration texts for each format, as fast as
  scoring; AWQ, which searches its scales, as many passes as were measured.
* build: `_BUILD_SECONDS_PER_GIGABYTE` of the checkpoint. Logs of others (TensorRT-LLM 1.0 to 1.2, one GPU): 8B in FP8,
  8.6 GB, 43 to 49 s with the conversion; in 4 bits, 5.4 and 8 GB, 55 and 38 s. Minutes, not half hours.
  Where a build is a start of the server, as vLLM's is: `start_seconds` of the engine.
* staging: with such an engine another start.
* load_test: all of its windows, when nothing has to be extended (`loadtest/session.py`).
* canary: what a step bakes at least, or until it has its requests at the workload's rate, and before the first one with
  vLLM another start.

Everything else takes seconds, or as long as a person does, and is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from statistics import median
from typing import Literal

from llm_pipeline.base.errors import ConfigError, located
from llm_pipeline.base.records import Frozen
from llm_pipeline.catalog.tables import find_gpu
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import HOUR, ResolvedRelease
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.loadtest.duration import session_seconds
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import PLAIN, climbing_order, weight_bytes
from llm_pipeline.planning.sources import History, Step
from llm_pipeline.planning.speed import REACHED, RooflineEngine, Tokens, answering_seconds, engine_of, prompt_seconds
from llm_pipeline.planning.task_pool import TaskItems, request_seconds
from llm_pipeline.release.candidate import candidates, target_of
from llm_pipeline.release.flow import steps_of
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.release.measured_cost import MeasuredCost, busy_gpus
from llm_pipeline.release.step import Work
from llm_pipeline.release.tasks import canary_subject, well_gone_steps


class PlannedStage(Frozen):
    """One step of the release, and what it takes when it is computed.

    Attributes:
        subject: The recipe, target or canary step it works on; empty for one-off stages.
        seconds: None where nothing was measured and no model says anything.
        basis: `measured` in earlier releases of this config (the median), or by a `model`; None for no figure.
        measurements: How many releases were measured.
        accelerator: The GPU that it keeps busy; empty for none.
        gpus: How many of them.
        gpu_hours: Of all of them together; None where the time is not known, 0 for a step without GPUs.
        price: In the deployment's currency; None without GPU-hours, or without a price.
    """

    stage: str
    subject: str = ""
    seconds: float | None = None
    basis: Literal["measured", "model"] | None = None
    measurements: int = 0
    accelerator: str = ""
    gpus: int = 0
    gpu_hours: float | None = None
    price: float | None = None


class TotalCost(MeasuredCost):
    """What all steps take at most: a ladder may need fewer recipes, and what the store holds already takes nothing.

    Attributes:
        currency: Three letters.
        not_known: Steps whose time is not known: nothing of them is in the figures.
    """

    currency: str
    not_known: tuple[str, ...]


def check_prices(loaded: LoadedRelease) -> None:
    """Make sure that prices are of GPUs that there are, and that a choice by cost can be made.

    Raises:
        ConfigError: A name is not in the GPU catalog; or the choice is by cost, and the load test looks for no rate, or
            what a target's hour costs is not known.
    """
    release = loaded.release
    for name in loaded.deployment.gpu_hour_prices.keys() - {"cpu"}:
        with located("gpu_hour_prices", f"deployment {loaded.deployment.name}"):
            find_gpu(name)
    if release.ladder.objective == "cost":
        if release.policy.load_test.search is None:
            where = f"policy {release.policy.name}"
            raise ConfigError("ladder.objective: cost needs the highest rate", where=where, hint="set load_test.search")
        _require_prices(loaded, "ladder.objective", {target.accelerator for target in release.targets})


def check_budget(loaded: LoadedRelease, stages: Iterable[PlannedStage]) -> None:
    """Make sure that a budget can be compared with the plan.

    Raises:
        ConfigError: It limits the cost, and a GPU has no price.
    """
    if loaded.config.budget.cost is not None:
        needed = {stage.accelerator for stage in stages if stage.gpus and stage.accelerator}
        _require_prices(loaded, "budget.cost", needed)


def _require_prices(loaded: LoadedRelease, key: str, accelerators: set[str]) -> None:
    name, prices = loaded.deployment.name, loaded.deployment.gpu_hour_prices
    if free := sorted(accelerators - prices.keys()):
        problem = f"{key}: what an hour of {', '.join(free)} costs is not known in deployment {name}"
        raise ConfigError(problem, where=str(loaded.path), hint=f"add it to gpu_hour_prices of deployments/{name}.yaml")


def planned_stage(loaded: LoadedRelease, step: Step, history: History, predicted: float | None) -> PlannedStage:
    """What a step takes when it is computed.

    Args:
        loaded: The release config.
        step: The step.
        history: Earlier releases of the config.
        predicted: Seconds by the models; None where they say nothing.
    """
    measured = history.seconds(step)
    seconds = median(measured) if measured else predicted
    accelerator, gpus = busy_gpus(loaded.release, loaded.deployment, *step)
    hours = None if seconds is None else gpus * seconds / HOUR
    price = loaded.deployment.gpu_hour_prices.get(accelerator)
    return PlannedStage(
        stage=step[0],
        subject=step[1],
        seconds=seconds,
        basis=None if seconds is None else "measured" if measured else "model",
        measurements=len(measured),
        accelerator=accelerator,
        gpus=gpus,
        gpu_hours=hours,
        price=None if price is None or hours is None else hours * price,
    )


def total_cost(loaded: LoadedRelease, stages: Iterable[PlannedStage]) -> TotalCost:
    """The sum over all steps, one after another."""
    total, unknown = MeasuredCost(), list[str]()
    for step in stages:
        if step.seconds is not None:
            price = step.price if step.gpu_hours else 0.0
            total += MeasuredCost(seconds=step.seconds, gpu_hours=step.gpu_hours or 0.0, price=price)
        elif step.stage not in steps_of(Work.PERSON):
            unknown.append(f"{step.stage} {step.subject}".strip())
    return TotalCost(**total.model_dump(), currency=loaded.deployment.currency, not_known=tuple(unknown))


def planned_steps(release: ResolvedRelease, facts: ModelFacts | None = None) -> Iterator[Step]:
    """Name and subject of every step of a release that goes well, in the order in which one machine runs them."""
    for step, subject in well_gone_steps(release, climbing_order(release, facts)):
        yield step.stage_name, subject


_BUILD_SECONDS_PER_GIGABYTE = 6.0

_SCORED_AT_ONCE = 32
"""Where the batch is chosen by what fits."""

_BYTES_PER_SECOND = 2.5e9
"""Of checkpoints loaded and exported: 16.1 GB were in 1.8 s, 9.1 GB in 7.8 s, with an H200."""

_AWQ_PASSES = 55
"""Time of a calibration under AWQ, by that of a plain pass over the same tokens, measured on an H200."""


def predicted_seconds(
    loaded: LoadedRelease, facts: ModelFacts | None, tasks: tuple[TaskItems, ...], ladders: dict[str, tuple[str, ...]]
) -> dict[Step, float]:
    """Predicted seconds by step, without the steps that cannot be predicted.

    Raises:
        ConfigError: An accelerator is not in the GPU catalog.
    """
    release, found = loaded.release, dict[Step, float]()

    def take(work: Work, subjects: Iterable[str], seconds: float | None) -> None:
        if seconds is not None:
            found.update({(name, subject): seconds for name in steps_of(work) for subject in subjects})

    if facts is not None and (host := loaded.deployment.quantization_host) is not None:
        with located("quantization_host", f"deployment {loaded.deployment.name}"):
            plain = RooflineEngine(facts, PLAIN, find_gpu(host.accelerator))
        batch = release.evaluation.batch_size
        scoring = scoring_seconds(tasks, plain, _SCORED_AT_ONCE if batch == "auto" else batch)
        take(Work.SCORING, [""], scoring)
        for recipe in release.recipes:
            take(Work.QUANTIZATION, [recipe.name], quantization_seconds(recipe, plain))
            take(Work.COMPARISON, [recipe.name], scoring)
    canary, served = release.policy.canary, [task for task in tasks if task.name in release.evaluation.served_tasks]
    tried = candidates(release, [recipe.name for recipe in release.recipes])
    for target in release.targets:
        subjects = [target.name]
        if release.ladder.objective != "size":  # candidates, whose results the chosen one takes
            subjects = [one for group in tried for one in group if target_of(one) == target.name]
        start = engine_adapter(target.engine).start_seconds
        take(Work.LOAD, subjects, session_seconds(release.workload, release.policy.load_test))
        for step, percent in enumerate(canary.steps_percent):
            bake = max(canary.minimum_bake_seconds, request_seconds(canary, release.workload.rate_per_second, percent))
            bake = min(bake, canary.maximum_bake_seconds) + (0.0 if step else start or 0.0)
            take(Work.BAKE, [canary_subject(target.name, percent)], bake)
        if facts is None or target.accelerator == "cpu" or not ladders[target.name]:
            continue
        sizes = {name: weight_bytes(facts, release.recipe(name)) for name in ladders[target.name]}
        largest = max(sizes, key=lambda name: sizes[name])
        take(Work.BUILD, subjects, start or _BUILD_SECONDS_PER_GIGABYTE * sizes[largest] / 1e9)
        take(Work.SERVER_START, [target.name, *subjects], start or None)
        engine = engine_of(facts, target, release.recipe(largest))
        take(Work.SERVED_SCORING, subjects, scoring_seconds(served, engine, target.limits.maximum_sequences))
    return found


def quantization_seconds(recipe: QuantizationRecipe, plain: RooflineEngine) -> float | None:
    """Loading a plain model, calibrating it with texts of full length, and exporting it; None for what is fetched."""
    if recipe.weights in ("none", "ready"):
        return 0.0 if recipe.weights == "none" else None
    files = (weight_bytes(plain.facts, PLAIN) + weight_bytes(plain.facts, recipe)) / _BYTES_PER_SECOND
    if recipe.calibration is None:
        return files
    tokens = recipe.calibration.samples * recipe.calibration.maximum_tokens
    passes = sum(_AWQ_PASSES if "awq" in name else 1 for name in recipe.formats)
    return files + passes * prompt_seconds(plain, tokens) / REACHED


def scoring_seconds(tasks: Sequence[TaskItems], engine: RooflineEngine, at_once: int) -> float | None:
    """Asking all items of the tasks, so many at a time; None where too little is known of one."""
    seconds = 0.0
    for task in tasks:
        if task.items is None or task.prompt_tokens is None or task.output_tokens is None:
            return None
        tokens = Tokens(task.prompt_tokens, task.output_tokens)
        seconds += ceil(task.items / at_once) * answering_seconds(engine, at_once, tokens) / REACHED
    return seconds

"""How long steps of a release take that were never measured: one stated model a stage. Pure.

* download: the checkpoint's bytes at the rate that the deployment allows; without a limit, nothing is known.
* baseline, quantize, accuracy: `planning/gpu_time.py`.
* build: `_BUILD_SECONDS_PER_GIGABYTE` of the checkpoint. Logs of others (TensorRT-LLM 1.0 to 1.2, one GPU): 8B in FP8,
  8.6 GB, 43 to 49 s with the conversion; in 4 bits, 5.4 and 8 GB, 55 and 38 s. Minutes, not half hours.
  vLLM's build is a start: `_VLLM_START_SECONDS`, most of it compilation, whatever the size (H200, vLLM 0.20: 0.1B in
  46 and 67 s, 8B in 47 and 69 s).
* staging: with vLLM another start.
* served_accuracy: the output tokens of its tasks at the predicted speed (`planning/speed.py`).
* load_test: all of its windows, when nothing has to be extended (`loadtest/session.py`).
* canary: the shortest bake of a step, and before the first one with vLLM another start. Live traffic decides how much
  longer it takes.

Everything else takes seconds, or as long as a person does, and is not predicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.loadtest.duration import session_seconds
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.memory import weight_bytes
from llm_pipeline.planning.quantization_plan import GpuCost
from llm_pipeline.planning.reuse import Step
from llm_pipeline.planning.speed import Tokens, tokens_per_second
from llm_pipeline.planning.task_pool import TaskItems
from llm_pipeline.release.flow import steps_of
from llm_pipeline.release.step import Work
from llm_pipeline.release.tasks import canary_subject

_BUILD_SECONDS_PER_GIGABYTE = 6.0
_VLLM_START_SECONDS = 55.0


def predicted_seconds(
    loaded: LoadedRelease,
    facts: ModelFacts | None,
    gpus: GpuCost | None,
    tasks: tuple[TaskItems, ...],
    ladders: dict[str, tuple[str, ...]],
) -> dict[Step, float]:
    """Seconds by step; steps of which nothing is known are left out.

    Raises:
        ConfigError: An accelerator is not in the GPU catalog.
    """
    found = dict(_whatever_the_model(loaded))
    if facts is not None:
        found |= dict(_by_size(loaded, facts, tasks, ladders))
    if gpus is not None:
        found |= dict(_on_gpus(gpus))
    return found


def _whatever_the_model(loaded: LoadedRelease) -> Iterator[tuple[Step, float]]:
    workload, canary = loaded.release.workload, loaded.release.policy.canary
    for target in loaded.release.targets:
        session = session_seconds(workload, loaded.release.policy.load_test)
        yield from (((name, target.name), session) for name in steps_of(Work.LOAD))
        start = _VLLM_START_SECONDS if target.engine == "vllm" else 0.0
        for step, percent in enumerate(canary.steps_percent):
            bake = canary.minimum_bake_seconds + (0.0 if step else start)
            yield from (((name, canary_subject(target.name, percent)), bake) for name in steps_of(Work.BAKE))


def _by_size(
    loaded: LoadedRelease, facts: ModelFacts, tasks: tuple[TaskItems, ...], ladders: dict[str, tuple[str, ...]]
) -> Iterator[tuple[Step, float]]:
    rate = loaded.deployment.hub.megabytes_per_second
    if rate is not None:
        yield from (((name, ""), facts.stored_bytes / (rate * 1e6)) for name in steps_of(Work.DOWNLOAD))
    served = [task for task in tasks if task.name in loaded.release.evaluation.served_tasks]
    for target in loaded.release.targets:
        if target.accelerator == "cpu" or not ladders[target.name]:
            continue
        recipes = [loaded.release.recipe(name) for name in ladders[target.name]]
        largest = max(recipes, key=lambda recipe: weight_bytes(facts, recipe))
        starts = target.engine == "vllm"
        build = _VLLM_START_SECONDS if starts else _BUILD_SECONDS_PER_GIGABYTE * weight_bytes(facts, largest) / 1e9
        yield from (((name, target.name), build) for name in steps_of(Work.BUILD))
        if starts:
            yield from (((name, target.name), _VLLM_START_SECONDS) for name in steps_of(Work.SERVER_START))
        seconds = [_served_seconds(task, facts, target, largest) for task in served]
        known = [value for value in seconds if value is not None]
        if len(known) == len(seconds):
            yield from (((name, target.name), sum(known)) for name in steps_of(Work.SERVED_SCORING))


def _served_seconds(task: TaskItems, facts: ModelFacts, target: Target, recipe: QuantizationRecipe) -> float | None:
    if task.items is None or not task.prompt_tokens or not task.output_tokens:
        return None
    tokens = Tokens(task.prompt_tokens, task.output_tokens)
    speed = tokens_per_second(facts, target, recipe, target.limits.maximum_sequences, tokens)
    return None if speed is None else task.items * task.output_tokens / speed


def _on_gpus(gpus: GpuCost) -> Iterator[tuple[Step, float]]:
    if gpus.scoring_minutes is not None:
        yield from (((name, ""), 60 * gpus.scoring_minutes) for name in steps_of(Work.SCORING))
    for recipe in gpus.recipes:
        if recipe.minutes is not None:
            yield from (((name, recipe.recipe), 60 * recipe.minutes) for name in steps_of(Work.QUANTIZATION))
        if gpus.expected_minutes is not None:
            yield from (((name, recipe.recipe), 60 * gpus.expected_minutes) for name in steps_of(Work.COMPARISON))

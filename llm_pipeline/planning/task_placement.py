"""Which tasks can be scored where: a served model answers in text, without probabilities of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.config.target import Target
from llm_pipeline.planning.compatibility import Refused
from llm_pipeline.planning.task_pool import TaskItems

_FIRST_WITH_PROMPT_LOGPROBS = "1.3.0rc11"


def judge_lanes(
    pool: Sequence[TaskItems], served: Sequence[str], targets: Sequence[Target]
) -> tuple[tuple[Refused, ...], tuple[str, ...]]:
    """What is wrong with the tasks that are scored through the endpoint, and what is not known of them."""
    by_name = {task.name: task for task in pool}
    tasks = [by_name[name] for name in served]
    refused = [task for task in tasks if task.is_generative is False]
    generative = [task.name for task in pool if task.is_generative]
    nearest = f"served_tasks: [{', '.join(generative)}]" if generative else "add a generative task to tasks"
    refusals = tuple(
        Refused(
            reason=f"served_tasks: {task.name} is {task.output_type}, which needs probabilities of the prompt's "
            f"tokens; {'; '.join(_why(targets))}",
            nearest=nearest,
        )
        for task in refused
    )
    unknown = [task.name for task in tasks if task.is_generative is None]
    warnings = (f"served_tasks: whether {', '.join(unknown)} are generative is not known here",) if unknown else ()
    return refusals, warnings


def _why(targets: Sequence[Target]) -> Iterator[str]:
    """For each kind of runtime once."""
    yield "the serving endpoint answers in text only"
    runtimes = {
        target.runtime_version
        for target in targets
        if target.engine.startswith("tensorrt_llm") and target.runtime_version and _is_before_prompt_logprobs(target)
    }
    for version in sorted(filter(None, runtimes)):
        yield f"TensorRT-LLM {version} gives none (its LLM API does from {_FIRST_WITH_PROMPT_LOGPROBS} on)"


def _is_before_prompt_logprobs(target: Target) -> bool:
    return release_numbers(target.runtime_version or "") < (1, 3) or _early_candidate(target.runtime_version or "")


def _early_candidate(version: str) -> bool:
    """Whether it is one of 1.3's release candidates before the first with prompt log-probabilities."""
    base, _, number = version.partition("rc")
    digits = number.partition(".")[0]
    first = int(_FIRST_WITH_PROMPT_LOGPROBS.partition("rc")[2])
    return base == "1.3.0" and digits.isdigit() and int(digits) < first

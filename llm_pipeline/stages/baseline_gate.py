"""Baseline gate: judge the unquantized model by itself, for a damaged source passes every comparison with itself.

It reads what the baseline scored and asks nothing again: another range costs seconds.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from llm_pipeline.accuracy.evaluation import EvaluationSummary, read_summary
from llm_pipeline.artifacts.items import ScoredItem, read_items
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput, StageResult

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class BaselineGateConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        expected: The range of the baseline's score, by task or group of tasks.
        maximum_cut_share: Share of a task's answers that may end by length.
    """

    expected: dict[str, ExpectedScore]
    maximum_cut_share: float


def run(context: StageContext[BaselineGateConfig]) -> StageOutput:
    """Judge the baseline's items, beside those of the release in production where there is one.

    Raises:
        IntegrityError: An evaluation is damaged.
    """
    # here: scipy loads slowly, and a result that is reused does not need it
    from llm_pipeline.accuracy.baseline_gate import judge_baseline

    directory, production = context.inputs["baseline"], context.inputs.get("production")
    summary = read_summary(directory)
    before = _asked_alike(production, summary) if production else []
    config = context.config
    judgement = judge_baseline(
        read_items(directory),
        config.expected,
        summary.groups | summary.tags,
        before,
        maximum_cut_share=config.maximum_cut_share,
    )
    return StageOutput(judgement=judgement)


def _asked_alike(production: Path, now: EvaluationSummary) -> list[ScoredItem]:
    """Items of the baseline in production, of the tasks that were asked and scored as they are now."""
    earlier = read_summary(production).harness
    facts = ("score", "chat template")
    alike = {
        task
        for task in now.tasks
        if all(earlier.get(f"{fact} of {task}") == now.harness.get(f"{fact} of {task}") for fact in facts)
    }
    return [item for item in read_items(production) if item.task in alike]


def request(flow: ReleaseProgress, _subject: str) -> tuple[BaselineGateConfig, Inputs]:
    """What the stage is given."""
    baseline = flow.artifact("baseline", "", "evaluation")
    inputs = {"baseline": baseline}
    if (before := _baseline_before(flow)) not in (None, baseline):
        inputs["production"] = before
    release = flow.release
    config = BaselineGateConfig(
        expected=release.baseline.expected, maximum_cut_share=release.policy.accuracy.maximum_cut_share
    )
    return config, inputs


def _baseline_before(flow: ReleaseProgress) -> ArtifactRef | None:
    """The baseline of the release in production, or of the one before it if that is this release; None for neither."""
    from llm_pipeline.release.execute import results_name
    from llm_pipeline.store.place_state import read_place

    for target in flow.targets:
        known = read_place(flow.store, flow.record.place_of(target)).of(flow.record.model.id)
        for pointer in (known.production, known.previous):
            if pointer is None or pointer.release_id == flow.record.release_id:
                continue
            document = flow.store.read_document(results_name(pointer.release_id, "baseline", ""))
            with suppress(ValidationError):  # of a version whose results were others
                found = StageResult.model_validate(document.value).artifacts.get("evaluation") if document else None
                if found is not None and flow.store.exists(found):
                    return found
    return None


STAGE = Stage(name="baseline_gate", version=4, config=BaselineGateConfig, request=request, run=run)

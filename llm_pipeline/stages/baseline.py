"""Baseline: the unquantized checkpoint's score on every evaluation item, which every candidate is compared with.

The gates that compare one with it keep their answers, read their data and say what they found likewise.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.config.quantization import Precision
from llm_pipeline.config.release import CheckpointEvaluation, Evaluation
from llm_pipeline.release.contract import TASKS_DATASET, Inputs, Produced, Stage, StageContext, StageOutput

if TYPE_CHECKING:
    from llm_pipeline.accuracy.evaluate import Evaluated
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)

_KEPT_SECONDS = 30 * 86_400.0


class BaselineConfig(CheckpointEvaluation):
    """What the stage reads: of an evaluation, that which decides what is asked.

    What else there is in an evaluation or a policy may change, and the baseline is not computed again.

    Attributes:
        dtype: The precision the baseline runs in.
    """

    dtype: Precision

    @classmethod
    def of(cls, evaluation: Evaluation, dtype: Precision) -> BaselineConfig:
        """The part of an evaluation that matters to a baseline."""
        return cls(dtype=dtype, **{name: getattr(evaluation, name) for name in CheckpointEvaluation.model_fields})


def run(context: StageContext[BaselineConfig]) -> StageOutput:
    """Evaluate the checkpoint as it was downloaded."""
    # here: numpy loads slowly, and a result that is reused does not need it
    from llm_pipeline.accuracy.evaluate import evaluate_baseline

    config = context.config
    answers = kept_answers(context, STAGE, config)
    evaluated = evaluate_baseline(context.inputs, config, config.dtype, context.workdir, answers=answers)
    return evaluation_output(evaluated)


def request(flow: ReleaseProgress, _subject: str) -> tuple[BaselineConfig, Inputs]:
    """What the stage is given."""
    config = BaselineConfig.of(flow.release.evaluation, flow.release.baseline.dtype)
    return config, {"checkpoint": flow.artifact("download", "", "checkpoint"), **scored_data(flow)}


def kept_answers(context: StageContext[Any], stage: Stage[Any], evaluation: CheckpointEvaluation) -> Path:
    """File of a checkpoint's answers, which outlives the work directory: another margin, or recipe none, asks nothing.

    What nobody wrote to for a month goes.
    """
    from llm_pipeline.release.execute import tool_versions

    folder = Path(context.request.work_root) / "answers"
    for path in folder.glob("*.jsonl"):
        if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
            path.unlink(missing_ok=True)
    inputs = {name: ref.digest for name, ref in context.request.inputs.items() if name != "baseline"}
    asked = evaluation.model_dump(mode="json", include=set(CheckpointEvaluation.model_fields))
    key = [inputs, asked, context.config.dtype, tool_versions(stage, context.config)]
    return folder / f"{sha256_json(key)}.jsonl"


def evaluation_output(evaluated: Evaluated, judgement: Judgement | None = None) -> StageOutput:
    """What a stage returns that scored a model; its scores are in the log."""
    from llm_pipeline.accuracy.evaluation import format_evaluation

    log.info(Lines(f"scores:{format_evaluation(evaluated.summary)}"))
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", evaluated.directory)},
        metrics=evaluated.metrics(),
        judgement=judgement,
    )


def scored_data(flow: ReleaseProgress) -> dict[str, ArtifactRef]:
    """What the tasks are and what they read."""
    return {**task_data(flow), "eval_data": flow.artifact("eval_data", "", "eval_data")}


def task_data(flow: ReleaseProgress) -> dict[str, ArtifactRef]:
    """The tasks of one's own, where the release has any."""
    tasks = flow.record.datasets.get(TASKS_DATASET)
    return {} if tasks is None else {"tasks": tasks}


STAGE = Stage(
    name="baseline",
    version=8,
    config=BaselineConfig,
    request=request,
    run=run,
    tools=("lm_eval", "torch", "transformers", "tokenizers", "datasets"),
    places=frozenset({"batch_size"}),
)

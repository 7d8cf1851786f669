"""Baseline: the unquantized checkpoint's score on every evaluation item, which every candidate is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.config.quantization import Precision
from llm_pipeline.config.release import CheckpointEvaluation, Evaluation
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import evaluation_output, kept_answers, scored_data

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


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


STAGE = Stage(
    name="baseline",
    version=8,
    config=BaselineConfig,
    request=request,
    run=run,
    tools=("lm_eval", "torch", "transformers", "tokenizers", "datasets"),
    places=frozenset({"batch_size"}),
)

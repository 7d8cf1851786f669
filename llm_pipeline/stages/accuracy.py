"""Accuracy: the exported checkpoint against its baseline, item by item."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.quantization import Precision
from llm_pipeline.config.release import Evaluation
from llm_pipeline.release.contract import Inputs, Stage, StageContext, StageOutput
from llm_pipeline.stages.baseline import evaluation_output, kept_answers, scored_data

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress


class AccuracyConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        evaluation: Tasks and limits, the same as the baseline's.
        policy: When a loss is too much.
        dtype: Precision of everything that is not quantized.
    """

    evaluation: Evaluation
    policy: AccuracyPolicy
    dtype: Precision


def run(context: StageContext[AccuracyConfig]) -> StageOutput:
    """Ask the candidate until it can be judged."""
    # here: numpy loads slowly, and a result that is reused does not need it
    from llm_pipeline.accuracy.evaluate import evaluate_candidate

    config = context.config
    answers = kept_answers(context, STAGE, config.evaluation)
    evaluated, judgement = evaluate_candidate(
        context.inputs, config.evaluation, config.policy, config.dtype, context.workdir, answers=answers
    )
    return evaluation_output(evaluated, judgement)


def request(flow: ReleaseProgress, subject: str) -> tuple[AccuracyConfig, Inputs]:
    """What the stage is given."""
    config = AccuracyConfig(
        evaluation=flow.release.evaluation.asked, policy=flow.release.policy.accuracy, dtype=flow.release.baseline.dtype
    )
    inputs = {
        "checkpoint": flow.artifact("quantize", subject, "checkpoint"),
        "baseline": flow.artifact("baseline", "", "evaluation"),
        **scored_data(flow),
    }
    return config, inputs


STAGE = Stage(
    name="accuracy",
    version=10,
    config=AccuracyConfig,
    request=request,
    run=run,
    tools=("lm_eval", "torch", "transformers", "tokenizers", "datasets"),
)

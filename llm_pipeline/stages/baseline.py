"""Baseline: the unquantized checkpoint's score on every evaluation item, which every candidate is compared with."""

from __future__ import annotations

from typing import Literal

from llm_pipeline.accuracy.checkpoint_lane import evaluate_lane, summary_table
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import Evaluation
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import Produced, Stage, StageContext, StageOutput

log = get_logger(__name__)


class BaselineConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        evaluation: Tasks and limits.
        dtype: The precision the baseline runs in.
    """

    evaluation: Evaluation
    dtype: Literal["float16", "bfloat16"]


def run(context: StageContext[BaselineConfig]) -> StageOutput:
    """Evaluate the checkpoint as it was downloaded."""
    evaluated = evaluate_lane(context.inputs, context.config.evaluation, context.config.dtype, context.workdir)
    log.info(summary_table(evaluated.summary))
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", evaluated.directory)},
        metrics=evaluated.metrics(),
        tool_seconds=evaluated.tool_seconds,
    )


STAGE = Stage(
    name="baseline",
    version=1,
    config=BaselineConfig,
    run=run,
    environment="model",
    tools=("lm_eval", "torch", "transformers", "tokenizers", "datasets"),
)

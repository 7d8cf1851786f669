"""Baseline gate: judge the unquantized model by itself, for a damaged source passes every comparison with itself.

It reads what the baseline scored and asks nothing again: another range costs seconds.
"""

from __future__ import annotations

from llm_pipeline.accuracy.baseline_gate import judge_baseline
from llm_pipeline.accuracy.evaluation import read_summary
from llm_pipeline.accuracy.items import read_items
from llm_pipeline.accuracy.table import format_baseline
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import ExpectedScore
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import Stage, StageContext, StageOutput
from llm_pipeline.verdict import Verdict

log = get_logger(__name__)


class BaselineGateConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        expected: The range of the baseline's score, by task or group of tasks.
    """

    expected: dict[str, ExpectedScore]


def run(context: StageContext[BaselineGateConfig]) -> StageOutput:
    """Judge the baseline's items, beside those of the release in production where there is one.

    Raises:
        IntegrityError: An evaluation is damaged.
    """
    directory, production = context.inputs["baseline"], context.inputs.get("production")
    before = read_items(production) if production else []
    named = read_summary(directory).named_tasks
    judgement = judge_baseline(read_items(directory), context.config.expected, named, before)
    say = log.info if judgement.verdict is Verdict.GO else log.warning
    say(format_baseline(judgement))
    say(f"baseline verdict: {judgement.verdict}: {judgement.summary}")
    return StageOutput(judgement=judgement)


STAGE = Stage(name="baseline_gate", version=1, config=BaselineGateConfig, run=run, environment="control")

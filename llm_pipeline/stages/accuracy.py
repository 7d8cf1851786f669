"""Accuracy: the exported checkpoint against its baseline, item by item."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llm_pipeline.base.digest import sha256_json
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import scored_data

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)

_KEPT_SECONDS = 30 * 86_400.0


class AccuracyConfig(ConfigModel):
    """What the stage reads.

    Attributes:
        evaluation: Tasks and limits, the same as the baseline's.
        policy: When a loss is too much.
        dtype: Precision of everything that is not quantized.
    """

    evaluation: Evaluation
    policy: AccuracyPolicy
    dtype: Literal["float16", "bfloat16"]


def run(context: StageContext[AccuracyConfig]) -> StageOutput:
    """Ask the candidate until it can be judged."""
    # here: numpy loads slowly, and a result that is reused does not need it
    from llm_pipeline.accuracy.evaluate import evaluate_candidate
    from llm_pipeline.accuracy.table import format_evaluation

    config = context.config
    policy = config.policy
    evaluated, judgement = evaluate_candidate(
        context.inputs, config.evaluation, policy, config.dtype, context.workdir, answers=kept_answers(context)
    )
    log.info(Lines(f"scores:{format_evaluation(evaluated.summary, policy)}"))
    say = log.info if judgement.verdict is Verdict.GO else log.warning
    say(f"accuracy verdict: {judgement.verdict}: {judgement.summary}")
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", evaluated.directory)},
        metrics=evaluated.metrics(),
        judgement=judgement,
        tool_seconds=evaluated.tool_seconds,
    )


def kept_answers(context: StageContext[AccuracyConfig]) -> Path:
    """File of the candidate's answers, which outlives the work directory: another margin asks nothing again.

    What nobody wrote to for a month goes.
    """
    from llm_pipeline.release.execute import tool_versions

    folder = Path(context.request.work_root) / "answers"
    for path in folder.glob("*.jsonl"):
        if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
            path.unlink(missing_ok=True)
    inputs = {name: ref.digest for name, ref in context.request.inputs.items()}
    asked = context.config.model_dump(mode="json", exclude={"policy"})
    return folder / f"{sha256_json([inputs, asked, STAGE.version, tool_versions(STAGE, context.config)])}.jsonl"


def request(flow: ReleaseProgress, subject: str) -> tuple[AccuracyConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    config = AccuracyConfig(
        evaluation=flow.release.evaluation.asked,
        policy=flow.release.policy.accuracy,
        dtype=flow.release.baseline.dtype,
    )
    inputs = {
        "checkpoint": flow.artifact("quantize", subject, "checkpoint"),
        "baseline": flow.artifact("baseline", "", "evaluation"),
        **scored_data(flow),
    }
    return config, inputs


STAGE = Stage(
    name="accuracy",
    version=9,
    config=AccuracyConfig,
    request=request,
    run=run,
    environment="model",
    tools=("lm_eval", "torch", "transformers", "tokenizers", "datasets"),
)

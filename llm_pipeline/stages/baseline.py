"""Baseline: the unquantized checkpoint's score on every evaluation item, which every candidate is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import Evaluation, TaskOptions
from llm_pipeline.release.contract import Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import scored_data

if TYPE_CHECKING:
    from llm_pipeline.flow import ReleaseProgress

log = get_logger(__name__)


class BaselineConfig(ConfigModel):
    """What the stage reads: of an evaluation, that which decides what is asked.

    What else there is in an evaluation or a policy may change, and the baseline is not computed again.

    Attributes:
        tasks: Tasks that are asked.
        task_options: Metric, filter, examples and chat format by task.
        chat_template: Ask in the chat format of the checkpoint's tokenizer.
        system_instruction: Put before every prompt.
        fewshot_as_multiturn: In the chat format, examples are turns of their own.
        allow_task_code: Task files may run Python that lies beside them.
        allow_generated_code: Tasks may run code that the model writes.
        limit: Items per task; None for all.
        maximum_length: Context length given to the model, in tokens.
        seed: Seed of the order, which decides what is asked twice and whose texts are kept.
        cluster_field: Field of the documents that says what belongs together.
        noise_floor_items: Items that are asked again at another batch size.
        divergence_items: Items on whose texts candidates are compared token by token.
        dtype: The precision the baseline runs in.
        batch_size: What fits into the device at once; changes no more than rounding does.
    """

    tasks: tuple[str, ...]
    task_options: dict[str, TaskOptions] = Field(default={})
    chat_template: Literal["auto"] | bool = "auto"
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True
    allow_task_code: bool = False
    allow_generated_code: bool = False
    limit: int | None = None
    maximum_length: int
    seed: int = 0
    cluster_field: str | None = None
    noise_floor_items: int = 0
    divergence_items: int = 0
    dtype: Literal["float16", "bfloat16"]
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"

    @classmethod
    def of(cls, evaluation: Evaluation, dtype: Literal["float16", "bfloat16"]) -> BaselineConfig:
        """The part of an evaluation that matters to a baseline."""
        shared = cls.model_fields.keys() & Evaluation.model_fields.keys()
        return cls(dtype=dtype, **{name: getattr(evaluation, name) for name in shared})

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation again; whether something is served too does not matter here."""
        return Evaluation(served_tasks=self.tasks[:1], **self.model_dump(exclude={"dtype"}))


def run(context: StageContext[BaselineConfig]) -> StageOutput:
    """Evaluate the checkpoint as it was downloaded."""
    # here: numpy loads slowly, and a result that is reused does not need it
    from llm_pipeline.accuracy.checkpoint_lane import evaluate_baseline
    from llm_pipeline.accuracy.table import format_evaluation

    config = context.config
    evaluated = evaluate_baseline(context.inputs, config.evaluation, config.dtype, context.workdir)
    log.info(Lines(format_evaluation(evaluated.summary)))
    return StageOutput(
        artifacts={"evaluation": Produced("evaluation", evaluated.directory)},
        metrics=evaluated.metrics(),
        tool_seconds=evaluated.tool_seconds,
    )


def request(flow: ReleaseProgress, _subject: str) -> tuple[BaselineConfig, Mapping[str, ArtifactRef]]:
    """What the stage is given."""
    config = BaselineConfig.of(flow.release.evaluation, flow.release.baseline.dtype)
    return config, {"checkpoint": flow.artifact("download", "", "checkpoint"), **scored_data(flow)}


STAGE = Stage(
    name="baseline",
    version=5,
    config=BaselineConfig,
    request=request,
    run=run,
    environment="model",
    tools=("lm_eval", "torch", "transformers", "tokenizers", "datasets"),
    places=frozenset({"batch_size"}),
)

"""Package: from an engine and the evaluation of what is in it to a model repository that Triton serves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pydantic import Field

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.golden import GOLDEN_FILE, golden_from_items, read_golden
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import Arguments
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import engine_adapter
from llm_pipeline.release.candidate import Candidate
from llm_pipeline.release.contract import Inputs, Produced, Stage, StageContext, StageOutput
from llm_pipeline.stages.request_parts import GOLDEN_MAXIMUM_TOKENS

if TYPE_CHECKING:
    from llm_pipeline.release_progress import ReleaseProgress
    from llm_pipeline.serving.model_repository import Fact

SPECULATION = "speculative_config"
"""The engine argument of speculative decoding, of vLLM as of TensorRT-LLM."""


class PackageConfig(ConfigModel):
    """What packaging reads.

    Attributes:
        target: What the server runs on, what it accepts at once, and how it queues and streams.
        golden_prompts: How many generative items of the evaluation become golden prompts where the build recorded none.
        maximum_tokens: Output limit of the evaluation's generations, asked for again with the golden prompts.
        model: The model's name at OpenAI's API.
        chat_template_arguments: What that API hands to the chat template by default: as the model was evaluated.
    """

    target: Target
    golden_prompts: int = Field(default=50, ge=1)
    maximum_tokens: int = Field(ge=1)
    model: str
    chat_template_arguments: Arguments = Field(default={})


def run(context: StageContext[PackageConfig]) -> StageOutput:
    """Write the model repository.

    Raises:
        IntegrityError: The evaluation has no generative item.
    """
    from llm_pipeline.serving.model_repository import write_repository  # here: a plan reads this module for its request

    config, engine = context.config, context.inputs["engine"]
    answering = context.inputs.get("plain_engine", engine)  # speculation must change no answer: staging compares
    if (answering / GOLDEN_FILE).is_file():
        golden = read_golden(answering)
    else:
        items = read_items(context.inputs["evaluation"])
        golden = golden_from_items(items, config.golden_prompts, maximum_tokens=config.maximum_tokens)
    if not golden:
        raise IntegrityError("the evaluation has no generative item to make golden prompts of", where="evaluation")
    destination = context.workdir / "repository"
    shutil.rmtree(destination, ignore_errors=True)
    written = write_repository(
        engine,
        golden,
        _facts(context),
        config.target,
        destination,
        engine_ref=context.request.inputs["engine"],
        model=config.model,
        chat_template_arguments=config.chat_template_arguments,
    )
    return StageOutput(artifacts={"repository": Produced("model_repository", destination)}, metrics=dict(written))


def _facts(context: StageContext[PackageConfig]) -> dict[str, Fact]:
    """What release.json says; nothing of the release itself, so that equal inputs give an equal repository."""
    description = EngineDescription.read(context.inputs["engine"])
    facts, host, target = description.facts, description.host, description.target
    return {
        "builder": target.engine,
        "weight_format": target.weight_format,
        "quantization": facts.quantization,
        "built_for": target.name,
        "built_on": facts.device,
        "built_in": host.container if host else None,
        "compute_capability": host.gpus[0].sm if host and host.gpus else None,
        "runtime_version": facts.versions.get(engine_adapter(target.engine).runtime),
        "engine_digest": context.request.inputs["engine"].digest,
        "evaluation_digest": context.request.inputs["evaluation"].digest,
    }


def request(flow: ReleaseProgress, subject: str) -> tuple[PackageConfig, Inputs]:
    """What the stage is given."""
    target, recipe = flow.target(subject), flow.chosen_recipe(subject)
    config = PackageConfig(
        target=target,
        maximum_tokens=GOLDEN_MAXIMUM_TOKENS,
        model=flow.record.model.id,
        chat_template_arguments=flow.release.evaluation.chat_template_arguments,
    )
    inputs = {
        "engine": flow.artifact("build", subject, "engine"),
        "evaluation": flow.artifact("accuracy", recipe, "evaluation"),
    }
    plain = Candidate(target.name, recipe).subject
    if SPECULATION in target.runtime.engine_args and SPECULATION not in flow.target(plain).runtime.engine_args:
        inputs["plain_engine"] = flow.artifact("build", plain, "engine")
    return config, inputs


STAGE = Stage(name="package", version=10, config=PackageConfig, request=request, run=run, tools=("tritonclient",))

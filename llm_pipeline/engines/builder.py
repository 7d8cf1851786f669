"""The engine builder's port: from a checkpoint and a target to a directory that a server can load.

    builder = engine_builder(target.engine)
    facts = builder.build(BuildInputs(checkpoint, target, dtype="float16"), destination)

The engine directory holds what serving needs, and `engine.json`: the facts, the target it was built for and the
properties that the runtime must be given so that it computes what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_pipeline.base.errors import IntegrityError, Unsupported, unless_io
from llm_pipeline.base.records import ArtifactRef, Metric
from llm_pipeline.config.target import EngineBuilderName, Target
from llm_pipeline.engines.host_facts import HostFacts
from llm_pipeline.engines.offline import refuse_telemetry
from llm_pipeline.serving.golden import GoldenPrompt

ENGINE_FILE = "engine.json"

BaselinePrecision = Literal["float16", "bfloat16"]


class EngineFacts(BaseModel):
    """What a build produced and what it measured.

    Attributes:
        builder: The builder's name.
        bytes: Size of the engine's files, without `engine.json`.
        weight_format: The target's weight format.
        quantization: The artifact's algorithm in modelopt's words; None for a plain checkpoint.
        kv_cache: Element type of the KV cache, and of the numbers in it if that is narrower.
        context_length: Most tokens (prompt and output) that the model can attend to.
        device: The device's full name.
        versions: Runtime and compiler versions by distribution.
        seconds: Time by phase of the build.
        single_stream_tokens_per_second: Output rate of one request alone, measured after the build; None if it was not.
        batched_tokens_per_second: Output rate of `batched_sequences` requests together; None if it was not measured.
        batched_sequences: Requests of the batched measurement.
        details: What only this builder has to say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    builder: EngineBuilderName
    bytes: int
    weight_format: str
    quantization: str | None
    kv_cache: str
    context_length: int
    device: str
    versions: dict[str, str]
    seconds: dict[str, float]
    single_stream_tokens_per_second: float | None = None
    batched_tokens_per_second: float | None = None
    batched_sequences: int = 0
    details: dict[str, Metric] = {}


class EngineDescription(BaseModel):
    """The content of `engine.json`.

    Attributes:
        facts: What the build produced.
        target: What it was built for.
        device_properties: The device at build time, for comparison with the device that serves.
        runtime_properties: Properties that the runtime must be given.
        host: GPUs, driver and container of the build; None for a CPU's. What serves it must match.
        checkpoint: The checkpoint that is served as it is; None where the engine holds the weights.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    facts: EngineFacts
    target: Target
    device_properties: dict[str, str] = {}
    runtime_properties: dict[str, str] = {}
    host: HostFacts | None = None
    checkpoint: ArtifactRef | None = None

    def write(self, engine: Path) -> None:
        """Write the description into the engine's directory."""
        (engine / ENGINE_FILE).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(engine: Path) -> EngineDescription:
        """Read the description of the engine in a directory.

        Raises:
            IntegrityError: It is missing or not one.
        """
        path = engine / ENGINE_FILE
        try:
            return EngineDescription.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise unless_io(error, IntegrityError(f"not an engine: {error}", where=str(path))) from error


@dataclass(frozen=True)
class BuildInputs:
    """What an engine is built from.

    Attributes:
        checkpoint: A Hugging Face checkpoint, plain or exported by modelopt, with its tokenizer.
        target: Where it will run.
        dtype: Precision in which a plain checkpoint is kept by `weight_format: native`.
        checkpoint_ref: The checkpoint's name in the store, for engines that serve it as it is.
        tensorrt_llm_checkpoint: The same weights as a TensorRT-LLM checkpoint, where the recipe exported one.
        golden: Prompts with the answers that the accuracy gate accepted; empty on a CPU.
        cache: Directory that outlives the build, for what makes the next one faster.
    """

    checkpoint: Path
    target: Target
    dtype: BaselinePrecision = "bfloat16"
    checkpoint_ref: ArtifactRef | None = None
    tensorrt_llm_checkpoint: Path | None = None
    golden: Sequence[GoldenPrompt] = ()
    cache: Path | None = None


class EngineBuilder(Protocol):
    """What every engine builder offers."""

    def build(self, inputs: BuildInputs, destination: Path) -> EngineFacts:
        """Build an engine into the new directory `destination`, whose parent exists and has room for scratch files.

        Raises:
            Unsupported: The checkpoint's format or architecture cannot be built this way, or not on this host.
            IntegrityError: The checkpoint is damaged, or the engine does not answer as the checkpoint does.
            BuildFailed: The build's tool failed for a reason that trying again does not change.
            Transient: The build was cut short.
        """


_BUILDERS: Mapping[EngineBuilderName, tuple[str, str]] = {
    "openvino_cpu": ("llm_pipeline.engines.openvino_cpu", "OpenVinoCpuBuilder"),
    "tensorrt_llm_llmapi": ("llm_pipeline.engines.tensorrt_llm_llmapi", "TensorRtLlmLlmApiBuilder"),
    "tensorrt_llm_engine": ("llm_pipeline.engines.tensorrt_llm_engine", "TensorRtLlmEngineBuilder"),
    "transformers_torch": ("llm_pipeline.engines.transformers_torch", "TransformersTorchBuilder"),
    "vllm": ("llm_pipeline.engines.vllm", "VllmBuilder"),
}


def engine_builder(name: EngineBuilderName) -> EngineBuilder:
    """The builder of that name; its libraries are imported here and not earlier.

    Raises:
        Unsupported: This interpreter lacks its libraries.
    """
    module, builder = _BUILDERS[name]
    refuse_telemetry()
    try:
        made: EngineBuilder = getattr(import_module(module), builder)()
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"engine builder {name} needs {error.name}, which this interpreter does not have",
            where="target.environment",
            hint="run the build in the environment that the target is for",
        ) from error
    return made

"""The engine builder's port: from a checkpoint and a target to a directory that a server can load.

    builder = engine_builder(target.engine)
    facts = builder.build(checkpoint, target, destination, dtype="float16")

The engine directory holds what serving needs, and `engine.json`: the facts, the target it was built for and the
properties that the runtime must be given so that it computes what was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from llm_pipeline.config.target import EngineBuilderName, Target
from llm_pipeline.errors import IntegrityError, Unsupported

ENGINE_FILE = "engine.json"

BaselinePrecision = Literal["float16", "bfloat16"]


class EngineFacts(BaseModel):
    """What a build produced and what it measured.

    Attributes:
        builder: The builder's name.
        bytes: Size of the engine's files, without `engine.json`.
        weight_format: The target's weight format.
        quantization: The artifact's algorithm in modelopt's words; None for a plain checkpoint.
        linears_quantized: Weight matrices that the engine keeps in 8 bits or fewer.
        activation_quantizers: Linear layers whose input the engine quantizes with the artifact's static scale.
        kv_cache: Element type of the KV cache, and of the numbers in it if that is narrower.
        context_length: Most tokens (prompt and output) that the model can attend to.
        device: The device's full name.
        versions: Runtime and compiler versions by distribution.
        seconds: Time by phase of the build.
        single_stream_tokens_per_second: Output rate of one request alone, measured after the build.
        batched_tokens_per_second: Output rate of `batched_sequences` requests together.
        batched_sequences: Requests of the batched measurement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    builder: EngineBuilderName
    bytes: int
    weight_format: str
    quantization: str | None
    linears_quantized: int
    activation_quantizers: int
    kv_cache: str
    context_length: int
    device: str
    versions: dict[str, str]
    seconds: dict[str, float]
    single_stream_tokens_per_second: float
    batched_tokens_per_second: float
    batched_sequences: int


class EngineDescription(BaseModel):
    """The content of `engine.json`.

    Attributes:
        facts: What the build produced.
        target: What it was built for.
        device_properties: The device at build time, for comparison with the device that serves.
        runtime_properties: Properties that the runtime must be given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    facts: EngineFacts
    target: Target
    device_properties: dict[str, str]
    runtime_properties: dict[str, str]

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
            raise IntegrityError(f"not an engine: {error}", where=str(path)) from error


class EngineBuilder(Protocol):
    """What every engine builder offers."""

    def build(
        self, checkpoint: Path, target: Target, destination: Path, *, dtype: BaselinePrecision = "bfloat16"
    ) -> EngineFacts:
        """Build the engine of `checkpoint` for `target` into the new directory `destination`.

        Args:
            checkpoint: A Hugging Face checkpoint, plain or exported by modelopt, with its tokenizer.
            target: Where it will run.
            destination: Directory to make; its parent must exist and have room for the intermediate files.
            dtype: Precision in which a plain checkpoint is kept by `weight_format: native`.

        Raises:
            Unsupported: The checkpoint's format or architecture cannot be built this way.
            IntegrityError: The checkpoint is damaged.
        """


def require_builder(name: EngineBuilderName) -> None:
    """Refuse a builder that this version does not have, before anything is spent on its release.

    Raises:
        Unsupported: There is none.
    """
    if name != "openvino_cpu":
        raise Unsupported(
            f"engine builder {name} is not available in this version",
            where="target.engine",
            hint="openvino_cpu is: use a target with engine: openvino_cpu",
        )


def engine_builder(name: EngineBuilderName) -> EngineBuilder:
    """The builder of that name; its libraries are imported here and not earlier.

    Raises:
        Unsupported: This version has no such builder, or this interpreter lacks its libraries.
    """
    require_builder(name)
    try:
        from llm_pipeline.engines.openvino_cpu import OpenVinoCpuBuilder
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"engine builder {name} needs {error.name}, which this interpreter does not have",
            where="target.environment",
            hint="run the build in the model environment",
        ) from error
    return OpenVinoCpuBuilder()

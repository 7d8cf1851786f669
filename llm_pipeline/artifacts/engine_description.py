"""`engine.json`: what a build produced, what it was built for, and what the runtime that serves it must be given."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from llm_pipeline.artifacts.host_facts import HostFacts
from llm_pipeline.artifacts.model_rules import ModelRules
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import ArtifactRef, Frozen, Metric
from llm_pipeline.config.target import Target

ENGINE_FILE = "engine.json"


class EngineFacts(Frozen):
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

    builder: str
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
    details: dict[str, Metric] = Field(default={})


class EngineDescription(Frozen):
    """The content of `engine.json`.

    Attributes:
        facts: What the build produced.
        target: What it was built for.
        device_properties: The device at build time, for comparison with the device that serves.
        runtime_properties: Properties that the runtime must be given.
        rules: How the model ends, samples and is spoken to; what serves the engine goes by them.
        host: GPUs, driver and container of the build; None for a CPU's. What serves it must match.
        checkpoint: The checkpoint that is served as it is; None where the engine holds the weights.
    """

    facts: EngineFacts
    target: Target
    device_properties: dict[str, str] = Field(default={})
    runtime_properties: dict[str, str] = Field(default={})
    rules: ModelRules = ModelRules()
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
        return load_record(EngineDescription, path, "not an engine")

"""Targets: the hardware and runtime an engine is built for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from llm_pipeline.base.adapters import is_ours
from llm_pipeline.config.installed import AdapterModel, installed_model
from llm_pipeline.config.model import (
    BatchSize,
    ConfigModel,
    Gpus,
    Line,
    Name,
    ParameterValue,
    PositiveMinutes,
    Queue,
    Ranks,
    Tokens,
    Word,
)
from llm_pipeline.config.quantization import CheckpointRanks


def _known_engine(name: str) -> str:
    if not is_ours("engines", name):
        installed_model("engines", name)
    return name


EngineBuilderName = Annotated[Word, AfterValidator(_known_engine)]
"""One of our engines, or one that an installed package brings."""


class EngineModel(AdapterModel):
    """Options of an engine of another package: its model derives from this one. Ours have none of their own.

    `problems` and `warnings` are asked with a target and a recipe.
    """


class Parallelism(CheckpointRanks):
    """How one engine is spread over GPUs.

    Attributes:
        expert: Ranks that the experts of a layer are spread over, out of the tensor parallel ones; None for none.
    """

    expert: Ranks | None = None


class EngineLimits(ConfigModel):
    """What one engine instance must be able to hold at once.

    Attributes:
        maximum_sequences: Requests in the batcher at a time.
        maximum_tokens_per_request: Prompt and output tokens of one request together.
        maximum_batched_tokens: Tokens a scheduler step.
        maximum_queued_requests: Requests beyond this are refused as unavailable.
        kv_cache_blocks: Blocks of the paged KV cache; None lets the runtime choose.
        threads: CPU threads of the engine.
    """

    maximum_sequences: BatchSize = 32
    maximum_tokens_per_request: Annotated[Tokens, Field(ge=2)] = 2048
    maximum_batched_tokens: Tokens = 2048
    maximum_queued_requests: Annotated[Queue, Field(ge=1)] = 128
    kv_cache_blocks: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    threads: Annotated[int, Field(ge=1, le=4096)] = 1


TOKENS_PER_BLOCK = 32
"""Of the paged KV cache, where the runtime does not choose."""


class KvCacheOptions(ConfigModel):
    """The paged KV cache.

    Attributes:
        free_memory_fraction: Share of the GPU memory left after loading that the cache may take; under vLLM, share of
            the whole GPU that weights and cache may take together.
        reuse_blocks: Keep the blocks of finished requests for others that begin alike.
    """

    free_memory_fraction: Annotated[float, Field(ge=0.001, le=1.0)] = 0.9
    reuse_blocks: bool = True


EngineArgs = Annotated[dict[Word, JsonValue], Field(max_length=256)]
"""Arguments of an engine, in its own words."""


class RuntimeOptions(ConfigModel):
    """How a GPU engine runs the model, in words that hold for all of them.

    Attributes:
        cuda_graphs: Run decoding steps as CUDA graphs. The LLM API and vLLM only.
        chunked_context: Split long prompts over several steps, between which others go on decoding.
        scheduler: `guaranteed_no_evict` starts a request when its whole answer fits; `max_utilization` starts more,
            and may pause some. TensorRT-LLM only.
        engine_args: More arguments of the engine, in its own words: keys of the LLM-args file of the target's
            TensorRT-LLM, such as `speculative_config` or `moe_config`, checked against its recorded schema; engine
            arguments of vLLM; properties of OpenVINO's CPU device.
    """

    kv_cache: KvCacheOptions = KvCacheOptions()
    cuda_graphs: bool = True
    chunked_context: bool = True
    scheduler: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    engine_args: EngineArgs = Field(default={})


class EngineBuildOptions(ConfigModel):
    """Options of the build.

    Attributes:
        time_limit_minutes: Longest build; it is stopped then.
        flags: More flags of `trtllm-build`, by name without dashes, which it checks itself. Switches take true and
            false; flags of several values take them separated by commas.
    """

    time_limit_minutes: PositiveMinutes = 120.0
    flags: Annotated[dict[Word, ParameterValue], Field(max_length=256)] = Field(default={})


class Target(ConfigModel):
    """One place a release is built for.

    Attributes:
        name: The target's name; the file's name without `.yaml`.
        accelerator: `cpu`, or a GPU's name in the GPU catalog.
        accelerator_count: GPUs of one engine instance; 0 on a CPU.
        gpus_per_node: GPUs of one host; an instance of more GPUs is spread over several.
        engine: The engine builder: `openvino_cpu`, `tensorrt_llm_llmapi`, `tensorrt_llm_engine`,
            `vllm`, or one that an installed package brings.
        engine_options: Options of an engine that an installed package brings, in the shape of its own model.
        weight_format: `native` keeps the artifact's own quantized weights; the others let the engine
            compiler quantize again, which only the served-accuracy gate can see.
        runtime_version: Version of the runtime, for GPU targets.
        container: Container image with its tag, and its digest if it is pinned, for GPU targets.
        environment: The deployment's environment that the build runs in: for GPU targets, one on a host with the
            target's GPUs and its runtime.
        runtime: How a GPU engine runs the model.
        build: Options of the build.
        server: What serves it: Triton, or the engine's own server with OpenAI's API: `vllm serve` of engine `vllm`,
            `trtllm-serve` of `tensorrt_llm_llmapi`. Such a server has neither Triton's routes nor our bounds on its
            queue, and runs on this host only.
        variants: Other `runtime.engine_args` by name, each over the target's own: `{kv_fp8: {kv_cache_dtype: fp8}}`.
            `tensor_parallel_size` changes the target's parallelism and GPUs. They are tried where the release's
            `ladder.objective` is `cost`.
    """

    name: Name
    description: Line = ""
    accelerator: Word
    accelerator_count: Gpus = 1
    gpus_per_node: Annotated[Gpus, Field(ge=1)] = 8
    engine: EngineBuilderName
    engine_options: SerializeAsAny[EngineModel] | None = Field(default=None, validate_default=True)
    weight_format: Literal["native", "fp32", "int8", "int4"] = "native"
    parallelism: Parallelism = Parallelism()
    limits: EngineLimits = EngineLimits()
    runtime_version: Word | None = None
    container: Word | None = None
    environment: Name = "model"
    runtime: RuntimeOptions = RuntimeOptions()
    build: EngineBuildOptions = EngineBuildOptions()
    server: Literal["triton", "vllm", "trtllm"] = "triton"
    variants: Annotated[dict[Name, EngineArgs], Field(max_length=16)] = Field(default={})

    @field_validator("engine_options", mode="wrap")
    @classmethod
    def _in_the_engines_shape(
        cls, value: Any, _: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> EngineModel | None:
        engine = info.data.get("engine")
        if engine is None or isinstance(value, EngineModel):
            return None if engine is None else value
        if not is_ours("engines", engine):
            options: EngineModel = installed_model("engines", engine).model_validate(value or {}, context=info.context)
            return options
        if value:
            raise ValueError(f"engine {engine} has no options here: see runtime and build")
        return None

    def varied(self, variant: str = "") -> Target:
        """The target as it is built and served: itself or one of its variants, which it then has no more.

        Raises:
            KeyError: It has no such variant.
        """
        arguments = dict(self.variants[variant]) if variant else {}
        changes: dict[str, Any] = {"variants": {}}
        tensor = arguments.pop("tensor_parallel_size", None)
        if isinstance(tensor, int):
            changes["parallelism"] = self.parallelism.model_copy(update={"tensor": tensor})
            changes["accelerator_count"] = tensor * self.parallelism.pipeline
        merged = {**self.runtime.engine_args, **arguments}
        changes["runtime"] = self.runtime.model_copy(update={"engine_args": merged})
        return self.model_copy(update=changes)

    @property
    def ranks_per_node(self) -> int:
        """Ranks, which is GPUs, of one engine instance on one host."""
        return min(self.parallelism.world_size, self.gpus_per_node)

"""How an engine is built: options of the build itself, which do not change what is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from llm_pipeline.config.model import ConfigModel, ParameterValue, PositiveMinutes, Ranks, Word

PluginType = Literal["auto", "float16", "float32", "bfloat16", "fp8", "nvfp4", "disable"]


class EngineBuildOptions(ConfigModel):
    """Options of the engine build.

    Attributes:
        time_limit_minutes: Longest build; it is stopped then.
        workers: Ranks that `trtllm-build` compiles at a time, each on a GPU of its own.
        gemm_plugin: cuBLAS plugin of matrix multiplications, by type; None for TensorRT's own kernels, but for NVFP4
            checkpoints, where only `disable` gives them.
        gpt_attention_plugin: Attention plugin, by type.
        paged_context_fmha: Needed for KV reuse and chunked context.
        fp8_context_fmha: FP8 attention kernels where the checkpoint allows them.
        multiple_profiles: Several optimization profiles: faster engines, slower builds.
        reduce_fusion: Fuse all-reduce with the norm after it; for tensor parallel Llama and Gemma 2.
        flags: More flags of `trtllm-build`, by name without dashes, checked against its recorded table. Switches take
            true and false; flags of several values take them separated by commas.
    """

    time_limit_minutes: PositiveMinutes = 120.0
    workers: Ranks = 1
    gemm_plugin: PluginType | None = "auto"
    gpt_attention_plugin: PluginType = "auto"
    paged_context_fmha: bool = True
    fp8_context_fmha: bool = True
    multiple_profiles: bool = False
    reduce_fusion: bool = False
    flags: Annotated[dict[Word, ParameterValue], Field(max_length=256)] = Field(default={})

"""How TensorRT-LLM runs a model: options of its executor, in words of our own that hold for all of its versions.

The LLM-args file of the LLM API and the parameters of Triton's `tensorrt_llm` model are rendered from them, each in
the spelling of the target's version.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from llm_pipeline.config.model import BatchSize, ConfigModel, Gib, PathText, Small, Tokens, Word

CacheTokens = Annotated[int, Field(ge=1, le=10_000_000_000)]

SpeculativeMethod = Literal["ngram", "eagle", "mtp", "draft_model"]


class KvCacheOptions(ConfigModel):
    """The paged KV cache.

    Attributes:
        free_memory_fraction: Share of the GPU memory left after loading that the cache may take; under vLLM, share of
            the whole GPU that weights and cache may take together.
        maximum_tokens: Most tokens in the cache; the smaller of this and the share above counts. None for no limit.
        reuse_blocks: Keep the blocks of finished requests for others that begin alike.
        host_gib: Host memory that blocks are moved to before they are dropped.
        attention_windows: Tokens that each layer attends to, repeated over the layers; None for all of them.
        sink_tokens: First tokens that a sliding window keeps; None for none.
        tokens_per_block: Tokens of one block.
    """

    free_memory_fraction: Annotated[float, Field(ge=0.001, le=1.0)] = 0.9
    maximum_tokens: CacheTokens | None = None
    reuse_blocks: bool = True
    host_gib: Gib = 0.0
    attention_windows: Annotated[tuple[Tokens, ...], Field(max_length=1024)] | None = None
    sink_tokens: Tokens | None = None
    tokens_per_block: Annotated[int, Field(ge=1, le=65_536)] = 32


class CudaGraphOptions(ConfigModel):
    """CUDA graphs of decoding steps.

    Attributes:
        padding: Run a batch in the next larger graph.
        maximum_batch_size: Largest batch that a graph is captured for; None for `limits.maximum_sequences`.
    """

    padding: bool = True
    maximum_batch_size: BatchSize | None = None


class SpeculativeDecoding(ConfigModel):
    """Draft tokens that the model only checks.

    Attributes:
        method: Where the draft comes from: the text so far, heads of an EAGLE-3 model, the model's own MTP layers, or a
            small model.
        draft_tokens: Most draft tokens of a step.
        draft_model: Directory of the draft model on the serving host: for `eagle` and `draft_model`, which need it.
    """

    method: SpeculativeMethod
    draft_tokens: Small = 4
    draft_model: PathText | None = None

    @model_validator(mode="after")
    def _draft_model_where_needed(self) -> Self:
        needed = self.method in ("eagle", "draft_model")
        if needed != (self.draft_model is not None):
            raise ValueError(f"method {self.method} {'needs' if needed else 'has no'} draft_model")
        return self


class RuntimeOptions(ConfigModel):
    """Options of TensorRT-LLM's executor.

    Attributes:
        cuda_graphs: None for no graphs. The LLM API and vLLM only.
        chunked_context: Split long prompts over several steps, between which others go on decoding.
        scheduler: `guaranteed_no_evict` starts a request when its whole answer fits; `max_utilization` starts more,
            and may pause some.
        beam_width: Beams of a request.
        stream_interval: Tokens between two chunks of a streamed answer. The LLM API only.
        overlap_scheduler: Prepare a step while the one before runs. The LLM API only.
        attention_data_parallel: Attention is copied, not split, over the ranks. The LLM API only.
        moe_backend: Kernels of mixture-of-experts layers, in the version's own words; None for its default.
        guided_decoding: Backend of structured output; None for none.
        speculative: None for no speculative decoding.
        extra_llm_args: More keys of the version's LLM-args file, checked against its recorded schema.
    """

    kv_cache: KvCacheOptions = KvCacheOptions()
    cuda_graphs: CudaGraphOptions | None = CudaGraphOptions()
    chunked_context: bool = True
    scheduler: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    beam_width: Small = 1
    stream_interval: Tokens = 1
    overlap_scheduler: bool = True
    attention_data_parallel: bool = False
    moe_backend: Word | None = None
    guided_decoding: Literal["xgrammar", "llguidance"] | None = None
    speculative: SpeculativeDecoding | None = None
    extra_llm_args: Annotated[dict[Word, JsonValue], Field(max_length=256)] = Field(default={})

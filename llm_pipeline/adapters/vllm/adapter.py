"""What the rest of the package knows of the engine `vllm`."""

from __future__ import annotations

from functools import partial

from llm_pipeline.artifacts.repository_layout import BATCHER_FILE, VLLM_PROCESS_FILE
from llm_pipeline.base.adapters import OnCall
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter
from llm_pipeline.serving.model_repository import write_batched

_START_SECONDS = 55.0
"""Most of it is compilation: on an H200 with vLLM 0.20, 0.1B in 46 and 67 s, 8B in 47 and 69 s."""

_RUNTIME_BYTES = 3 * 2**28
"""CUDA graphs and workspaces; on an H200 with vLLM 0.20, 8B took 1.0 and 1.1 GiB and 0.1B 0.3 GiB."""

_CODE = {"vllm_batcher": BATCHER_FILE, "vllm_process": VLLM_PROCESS_FILE}


_BUILDER = OnCall("llm_pipeline.adapters.vllm.builder:VllmBuilder")

ADAPTER = EngineAdapter(
    config=EngineModel,
    open=lambda _: _BUILDER(),
    judge=OnCall("llm_pipeline.adapters.vllm.plan:judge"),
    write_repository=partial(write_batched, code=_CODE),
    runtime="vllm",
    beside_triton=True,
    words="vLLM",
    reads={
        "runtime": frozenset(
            {"cuda_graphs", "kv_cache.free_memory_fraction", "kv_cache.reuse_blocks", "chunked_context"}
        ),
        "build": frozenset(),
        "serving": frozenset({"cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"}),
    },
    holds_weights=False,
    start_seconds=_START_SECONDS,
    shares_whole_memory=True,
    runtime_bytes=_RUNTIME_BYTES,
    tuned=("runtime.kv_cache.free_memory_fraction",),
)

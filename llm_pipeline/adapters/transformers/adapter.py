"""What the rest of the package knows of the engine `transformers_torch`."""

from __future__ import annotations

from functools import partial

from llm_pipeline.artifacts.repository_layout import BATCHER_FILE
from llm_pipeline.base.adapters import OnCall
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter
from llm_pipeline.serving.model_repository import write_batched

_BUILDER = OnCall("llm_pipeline.adapters.transformers.builder:TransformersTorchBuilder")

ADAPTER = EngineAdapter(
    config=EngineModel,
    open=lambda _: _BUILDER(),
    judge=OnCall("llm_pipeline.adapters.transformers.plan:judge"),
    write_repository=partial(write_batched, code={"transformers_batcher": BATCHER_FILE}),
    runtime="transformers",
    beside_triton=True,
    words="Transformers",
    reads={
        "runtime": frozenset({"cuda_graphs"}),
        "build": frozenset(),
        "serving": frozenset({"cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"}),
    },
    holds_weights=False,
    tuned=("limits.kv_cache_blocks",),
)

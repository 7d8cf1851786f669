"""What the rest of the package knows of the engine `vllm`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llm_pipeline.artifacts.repository_layout import BATCHER_FILE, VLLM_PROCESS_FILE
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter, EngineBuilder
from llm_pipeline.serving.repositories.one_model import write_batched

if TYPE_CHECKING:
    from llm_pipeline.planning.compatibility import Asked, Legal, Refused

_CODE = {"vllm_batcher": BATCHER_FILE, "vllm_process": VLLM_PROCESS_FILE}


def _open(_: EngineModel) -> EngineBuilder:
    from llm_pipeline.adapters.vllm.builder import VllmBuilder

    return VllmBuilder()


def _judge(question: Asked) -> Legal | Refused:
    from llm_pipeline.adapters.vllm.plan import judge

    return judge(question)


ADAPTER = EngineAdapter(
    config=EngineModel,
    open=_open,
    judge=_judge,
    write_repository=partial(write_batched, code=_CODE),
    runtime="vllm",
    beside_triton=True,
    words="vLLM",
    reads={
        "runtime": frozenset({"cuda_graphs", "kv_cache", "chunked_context"}),
        "build": frozenset(),
        "serving": frozenset({"cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"}),
    },
    files=tuple(_CODE.values()),
)

"""What the rest of the package knows of TensorRT-LLM's engines: those of its LLM API, and compiled ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_pipeline.artifacts.repository_layout import LLM_FILE, TOKENIZER_DIRECTORY
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter, EngineBuilder
from llm_pipeline.serving.repositories.engine import write_engine_set
from llm_pipeline.serving.repositories.one_model import write_llm_api

if TYPE_CHECKING:
    from llm_pipeline.planning.compatibility import Asked, Legal, Refused

_DISTRIBUTION = "tensorrt_llm"


def _open_llm_api(_: EngineModel) -> EngineBuilder:
    from llm_pipeline.adapters.tensorrt_llm.llmapi_builder import TensorRtLlmLlmApiBuilder

    return TensorRtLlmLlmApiBuilder()


def _open_compiler(_: EngineModel) -> EngineBuilder:
    from llm_pipeline.adapters.tensorrt_llm.engine_builder import TensorRtLlmEngineBuilder

    return TensorRtLlmEngineBuilder()


def _judge(question: Asked) -> Legal | Refused:
    from llm_pipeline.adapters.tensorrt_llm.plan import judge

    return judge(question)


LLM_API = EngineAdapter(
    config=EngineModel,
    open=_open_llm_api,
    judge=_judge,
    write_repository=write_llm_api,
    runtime=_DISTRIBUTION,
    words="the LLM API",
    reads={
        "build": frozenset({"time_limit_minutes"}),
        "serving": frozenset(
            {"gpu_device_ids", "cancellation_check_milliseconds", "add_special_tokens", "skip_special_tokens"}
        ),
    },
    files=(LLM_FILE,),
)
COMPILED = EngineAdapter(
    config=EngineModel,
    open=_open_compiler,
    judge=_judge,
    write_repository=write_engine_set,
    runtime=_DISTRIBUTION,
    words="a compiled engine",
    reads={
        "runtime": frozenset(
            {"kv_cache", "chunked_context", "scheduler", "beam_width", "guided_decoding", "speculative"}
        ),
    },
    files=(
        "engine_call.py",
        "own_server.py",
        "engine_tokenizer.py",
        f"{TOKENIZER_DIRECTORY}/tokenizer_config.json",
    ),
)

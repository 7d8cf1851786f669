"""What the rest of the package knows of TensorRT-LLM's engines: those of its LLM API, and compiled ones."""

from __future__ import annotations

from llm_pipeline.adapters.tensorrt_llm.repositories import SERVER, write_engine_set, write_llm_api
from llm_pipeline.artifacts.repository_layout import ENGINE_MODEL, MODEL_NAME
from llm_pipeline.base.adapters import OnCall
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter

_DISTRIBUTION = "tensorrt_llm"
_PLAN = "llm_pipeline.adapters.tensorrt_llm.plan"


_LLM_API_BUILDER = OnCall("llm_pipeline.adapters.tensorrt_llm.llmapi_builder:TensorRtLlmLlmApiBuilder")
_COMPILER = OnCall("llm_pipeline.adapters.tensorrt_llm.engine_builder:TensorRtLlmEngineBuilder")

LLM_API = EngineAdapter(
    config=EngineModel,
    open=lambda _: _LLM_API_BUILDER(),
    judge=OnCall(f"{_PLAN}:judge"),
    judge_model=OnCall(f"{_PLAN}:judge_model"),
    warnings=OnCall("llm_pipeline.adapters.tensorrt_llm.plan:llm_args_warnings"),
    write_repository=write_llm_api,
    runtime=_DISTRIBUTION,
    own_server=SERVER,
    words="the LLM API",
    reads={"build": frozenset({"time_limit_minutes"})},
    ranks="launcher",
    holds_weights=False,
)
COMPILED = EngineAdapter(
    config=EngineModel,
    open=lambda _: _COMPILER(),
    judge=OnCall(f"{_PLAN}:judge"),
    write_repository=write_engine_set,
    runtime=_DISTRIBUTION,
    words="a compiled engine",
    reads={"runtime": frozenset({"kv_cache.*", "chunked_context", "scheduler"})},
    ranks="servers",
    models=("ensemble", MODEL_NAME, "postprocessing", "preprocessing", ENGINE_MODEL, "tensorrt_llm_bls"),
    compiles_export=True,
)

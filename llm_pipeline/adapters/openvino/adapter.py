"""What the rest of the package knows of the engine `openvino_cpu`."""

from __future__ import annotations

from llm_pipeline.artifacts.repository_layout import ENGINE_DIRECTORY, OPENVINO_FILES
from llm_pipeline.base.adapters import OnCall
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter
from llm_pipeline.serving.repositories.one_model import write_openvino

_BUILDER = OnCall("llm_pipeline.adapters.openvino.builder:OpenVinoCpuBuilder")

ADAPTER = EngineAdapter(
    config=EngineModel,
    open=lambda _: _BUILDER(),
    judge=OnCall("llm_pipeline.adapters.openvino.plan:judge"),
    judge_model=OnCall("llm_pipeline.adapters.openvino.plan:judge_model"),
    write_repository=write_openvino,
    runtime="openvino-genai",
    beside_triton=True,
    files=tuple(f"{ENGINE_DIRECTORY}/{name}" for name in OPENVINO_FILES),
    tools=("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "torch", "transformers"),
    tuned=("limits.threads", "limits.kv_cache_blocks"),
)

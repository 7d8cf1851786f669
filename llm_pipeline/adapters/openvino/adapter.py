"""What the rest of the package knows of the engine `openvino_cpu`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.artifacts.repository_layout import ALL_FEATURES, ENGINE_DIRECTORY, OPENVINO_FILES, TOKENIZER_FILE
from llm_pipeline.base.adapters import OnCall
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import EngineModel
from llm_pipeline.engines.builder import EngineAdapter

if TYPE_CHECKING:
    from llm_pipeline.serving.model_repository import PackagedEngine

_BUILDER = OnCall("llm_pipeline.adapters.openvino.builder:OpenVinoCpuBuilder")


def _write_repository(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the model with the runtime's files only: a store keeps its own beside them. Nothing is linked."""
    from llm_pipeline.serving.model_repository import write_served_model

    version = write_served_model(engine, "openvino_model", repository, features=ALL_FEATURES)
    fast_tokenizer = [TOKENIZER_FILE] if (engine.directory / TOKENIZER_FILE).is_file() else []
    for name in (*OPENVINO_FILES, *fast_tokenizer):
        shutil.copyfile(engine.directory / name, version / ENGINE_DIRECTORY / name)
    return {}


ADAPTER = EngineAdapter(
    config=EngineModel,
    open=lambda _: _BUILDER(),
    judge=OnCall("llm_pipeline.adapters.openvino.plan:judge"),
    judge_model=OnCall("llm_pipeline.adapters.openvino.plan:judge_model"),
    write_repository=_write_repository,
    runtime="openvino-genai",
    beside_triton=True,
    scores_prompts=True,
    tools=("openvino", "openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "torch", "transformers"),
)

"""The repository of a TensorRT-LLM engine: our model `llm`, and the classic set for clients that use it.

`tensorrt_llm` runs the engine, which is linked and not copied; `llm` and `tensorrt_llm_bls` call it, and `ensemble`
wires it to `preprocessing` and `postprocessing`. Paths in configurations are relative to the repository, which must
be the server's working directory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from llm_pipeline.artifacts.repository_layout import (
    ENGINE_DIRECTORY,
    ENGINE_MODEL,
    MODEL_FILE,
    MODEL_NAME,
    MODEL_VERSION,
    TOKENIZER_DIRECTORY,
)
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.json_document import load_record
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.serving.model_repository import PackagedEngine, copy_code, text_switches, write_served_model
from llm_pipeline.serving.triton_config.inflight_batcher import (
    LogitsType,
    bls_config,
    engine_model_config,
    ensemble_config,
    postprocessing_config,
    preprocessing_config,
    write_config,
)

_ENGINE = f"{ENGINE_MODEL}/{MODEL_VERSION}/{ENGINE_DIRECTORY}"
_TOKENIZER = f"{MODEL_NAME}/{MODEL_VERSION}/{TOKENIZER_DIRECTORY}"
_CODE = {
    MODEL_NAME: ("engine_tokenizer", "engine_call", "own_server"),
    "preprocessing": ("preprocessing_model", "engine_tokenizer"),
    "postprocessing": ("postprocessing_model", "engine_tokenizer"),
    "tensorrt_llm_bls": ("bls_model", "engine_call", "own_server", "llm_model_base"),
}
"""Files of `serving/models` by the model that they are copied to."""


class _PretrainedConfig(BaseModel):
    model_config = ConfigDict(frozen=True)  # not `Frozen`: TensorRT-LLM writes many more fields

    logits_dtype: LogitsType = "float32"


class _EngineConfig(BaseModel):
    """What is read of the engine's own `config.json`."""

    model_config = ConfigDict(frozen=True)  # not `Frozen`, as above

    pretrained_config: _PretrainedConfig


def write_engine_set(engine: PackagedEngine, repository: Path) -> dict[str, ArtifactRef]:
    """Write the models; returns what they link to.

    Raises:
        IntegrityError: The engine has no `config.json` or no tokenizer.
        ConfigError: Options of the target do not fit together.
        Unsupported: The target asks for what only the LLM API has.
    """
    logits = _logits_type(engine.directory)
    write_served_model(engine, "engine_model", repository, parameters=_parameters(engine))
    _copy_tokenizer(engine.directory, repository / _TOKENIZER)
    configs = [
        engine_model_config(
            engine.target, engine_directory=_ENGINE, tokenizer_directory=_TOKENIZER, logits_type=logits
        ),
        preprocessing_config(engine.target, tokenizer_directory=_TOKENIZER),
        postprocessing_config(engine.target, tokenizer_directory=_TOKENIZER),
        ensemble_config(engine.target, logits_type=logits),
        bls_config(engine.target, logits_type=logits),
    ]
    for config in configs:
        write_config(config, repository / config.name)
    _copy_code(repository)
    _describe_version(repository / "ensemble", "An ensemble has no code: its wiring is in config.pbtxt.")
    _describe_version(repository / ENGINE_MODEL, f"The engine is linked as {ENGINE_DIRECTORY}/ when a server starts.")
    return {_ENGINE: engine.ref}


def _parameters(engine: PackagedEngine) -> dict[str, str]:
    """What the model `llm` reads besides its limits."""
    serving = engine.target.serving
    return {**text_switches(serving), "streaming": str(serving.streaming).lower()}


def _logits_type(engine: Path) -> LogitsType:
    path = engine / "config.json"
    return load_record(_EngineConfig, path, "not an engine of TensorRT-LLM").pretrained_config.logits_dtype


def _copy_tokenizer(engine: Path, destination: Path) -> None:
    if not (engine / TOKENIZER_DIRECTORY).is_dir():
        raise IntegrityError("the engine has no tokenizer", where=str(engine / TOKENIZER_DIRECTORY))
    shutil.copytree(engine / TOKENIZER_DIRECTORY, destination)


def _copy_code(repository: Path) -> None:
    """The code of each model, but for the `model.py` of `llm`, which is there already."""
    for model, names in _CODE.items():
        version = repository / model / str(MODEL_VERSION)
        for name in names:
            is_model = name.endswith("_model")
            copy_code(name, version / (MODEL_FILE if is_model else f"{name}.py"))


def _describe_version(model: Path, text: str) -> None:
    """The server wants a version directory although it is empty, and a store keeps no empty ones."""
    version = model / str(MODEL_VERSION)
    version.mkdir()
    (version / "about.txt").write_text(f"{text}\n", encoding="utf-8")

"""Rules of the repositories that this package writes, which Triton enforces late (at load) or never.

`lint_repository` returns one sentence a broken rule, so that all of them can be mended at once. It is about the model
`llm`, the engine's files and the links; `serving/lint` knows the rules of any repository.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llm_pipeline.config.target import EngineBuilderName
from llm_pipeline.engines.builder import ENGINE_FILE, EngineDescription
from llm_pipeline.errors import IntegrityError
from llm_pipeline.serving.lint import lint_repository_directory
from llm_pipeline.serving.repository_layout import (
    BASE_FILE,
    CONFIG_FILE,
    ENGINE_DIRECTORY,
    FACT_PREFIX,
    INPUTS,
    LIMIT_PARAMETERS,
    LLM_FILE,
    MODEL_FILE,
    MODEL_NAME,
    OPENVINO_FILES,
    OUTPUTS,
    TOKENIZER_DIRECTORY,
)
from llm_pipeline.serving.repository_links import read_links

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_FILES: Mapping[EngineBuilderName, tuple[str, ...]] = {
    "openvino_cpu": tuple(f"{ENGINE_DIRECTORY}/{name}" for name in OPENVINO_FILES),
    "tensorrt_llm_llmapi": (LLM_FILE,),
    "tensorrt_llm_engine": ("engine_call.py", "engine_tokenizer.py", f"{TOKENIZER_DIRECTORY}/tokenizer_config.json"),
}
_LEFTOVER = re.compile(r"\$\{[^}]*\}|\{\{.*?\}\}")


def lint_repository(directory: Path) -> list[str]:
    """Every rule that the model repository in `directory` breaks; empty for a sound one."""
    model = directory / MODEL_NAME
    path = model / CONFIG_FILE
    if not path.is_file():
        return [f"{MODEL_NAME}/{CONFIG_FILE} is missing"]
    text = path.read_text(encoding="utf-8")
    parsed = _parse(text)
    if isinstance(parsed, str):
        return [*_leftovers(text), parsed]
    return [
        *_config_problems(parsed),
        *_file_problems(model),
        *_link_problems(directory),
        *_general_problems(directory),
    ]


def _general_problems(directory: Path) -> Iterator[str]:
    """What holds for any repository; the configuration of `llm`, whose facts may say anything, has rules here."""
    for finding in lint_repository_directory(directory):
        if finding.severity == "error" and (finding.model, finding.file) != (MODEL_NAME, CONFIG_FILE):
            yield str(finding)


def _leftovers(text: str) -> list[str]:
    return [f"{CONFIG_FILE} holds an unfilled placeholder {found}" for found in _LEFTOVER.findall(text)]


def _parse(text: str) -> ModelConfig | str:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as messages

    try:
        return text_format.Parse(text, messages.ModelConfig())
    except text_format.ParseError as error:
        return f"{CONFIG_FILE} is not a model configuration: {error}"


def _config_problems(config: ModelConfig) -> Iterator[str]:
    if config.name != MODEL_NAME:
        yield f"the configuration is named {config.name!r}, its directory {MODEL_NAME!r}"
    if not config.backend:
        yield "backend is not set: the server would have to guess it"
    elif config.backend != "python":
        yield f"backend is {config.backend!r}; {MODEL_FILE} needs python"
    if not config.model_transaction_policy.decoupled:
        yield "the transaction policy is not decoupled: streaming would abort"
    if config.max_batch_size != 0:
        yield f"max_batch_size is {config.max_batch_size}: the engine batches by itself, so it must be 0"
    sets = [one for one in config.parameters["gpu_device_ids"].string_value.split(";") if one]
    if any(group.kind != group.KIND_CPU or group.count != (len(sets) or 1) for group in config.instance_group):
        yield (
            f"the instance group must be {len(sets) or 'one'} of KIND_CPU, one for each set of gpu_device_ids: "
            "every instance loads an engine of its own"
        )
    for name in LIMIT_PARAMETERS:
        if not config.parameters[name].string_value.isdecimal():
            yield f"parameter {name} is missing or not a whole number"
    yield from _tensor_problems(config)
    own = type(config)()
    own.CopyFrom(config)
    for name in [name for name in own.parameters if name.startswith(FACT_PREFIX)]:
        del own.parameters[name]  # facts may say anything
    yield from _leftovers(str(own))


def _tensor_problems(config: ModelConfig) -> Iterator[str]:
    from tritonclient.grpc import model_config_pb2 as messages

    for kind, want, have in (("input", INPUTS, config.input), ("output", OUTPUTS, config.output)):
        names = [tensor.name for tensor in have]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{kind} {name} is declared twice"
        tensors = {tensor.name: tensor for tensor in have}
        for tensor in want:
            found = tensors.pop(tensor.name, None)
            if found is None:
                yield f"{kind} {tensor.name} is missing"
            elif (messages.DataType.Name(found.data_type), tuple(found.dims)) != (tensor.data_type, tensor.dimensions):
                yield f"{kind} {tensor.name} is not {tensor.data_type} {list(tensor.dimensions)}"
            elif kind == "input" and found.optional != tensor.optional:
                yield f"input {tensor.name} must be {'optional' if tensor.optional else 'required'}"
        yield from (f"{kind} {name} is not one that {MODEL_FILE} knows" for name in tensors)


def _file_problems(model: Path) -> Iterator[str]:
    versions = [entry for entry in model.iterdir() if entry.is_dir()]
    if not versions:
        yield "there is no version directory"
    for version in versions:
        if not version.name.isdecimal() or version.name.startswith("0"):
            yield f"{version.name} is not a version directory: the server takes positive whole numbers only"
            continue
        yield from _code_problems(version)
        for name in _needed(version):
            path = version / name
            if not path.is_file() or path.stat().st_size == 0:
                yield f"{version.name}/{name} is missing or empty"


def _needed(version: Path) -> tuple[str, ...]:
    """What must lie beside `model.py`, which says itself what it reads."""
    try:
        builder = EngineDescription.read(version / ENGINE_DIRECTORY).facts.builder
    except IntegrityError:
        return (BASE_FILE, f"{ENGINE_DIRECTORY}/{ENGINE_FILE}")
    return (BASE_FILE, *_FILES[builder])


def _code_problems(version: Path) -> Iterator[str]:
    path = version / MODEL_FILE
    if not path.is_file():
        yield f"{version.name}/{MODEL_FILE} is missing"
        return
    try:
        code = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        yield f"{version.name}/{MODEL_FILE} does not parse: {error}"
        return
    if not any(isinstance(node, ast.ClassDef) and node.name == "TritonPythonModel" for node in code.body):
        yield f"{version.name}/{MODEL_FILE} has no class TritonPythonModel"


def _link_problems(directory: Path) -> Iterator[str]:
    for path in sorted(directory.rglob("*")):
        if path.is_symlink():
            yield f"{path.relative_to(directory)} is a symbolic link"
    try:
        links = read_links(directory)
    except IntegrityError as error:
        yield error.message
        return
    yield from (f"{name} is linked, but it is there already" for name in links if (directory / name).exists())
    yield from (f"{name} is linked, but its directory is missing" for name in links
                if not (directory / name).parent.is_dir())  # fmt: skip

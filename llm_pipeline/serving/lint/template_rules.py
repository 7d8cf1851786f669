"""Rules of NVIDIA's templates: placeholders that were never filled in, and parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from llm_pipeline.artifacts.repository_layout import CONFIG_FILE, FACT_PREFIX
from llm_pipeline.config.triton_names import ModelName
from llm_pipeline.serving.lint.known_mistakes import PARAMETER_PREFIXES, PARAMETERS, TEMPLATE_VALUES
from llm_pipeline.serving.lint.parsing import Leftover, find_leftovers
from llm_pipeline.serving.lint.repository import Finding, ModelSource, Repository
from llm_pipeline.serving.triton_config.recorded import MODEL_NAMES, RecordedParameter, recorded_model

BACKEND = "tensorrtllm"
_OTHER_BACKENDS = {"vllm", "onnxruntime", "tensorrt", "openvino", "pytorch", "tensorflow", "dali", "fil"}
"""Whose models take no parameters of the engine, though some are copied along with them."""
_OF_THE_PYTHON_BACKEND = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_PYTHON_BACKEND_STUB")
_TEXT_MODELS: dict[str, tuple[ModelName, str]] = {
    "preprocessing": ("preprocessing", "QUERY"),
    "postprocessing": ("postprocessing", "TOKENS_BATCH"),
    "tensorrt_llm_bls": ("tensorrt_llm_bls", "text_input"),
}
"""Template by model name, and the input that shows that it is that template."""


def template_of(model: ModelSource) -> ModelName | None:
    """The template of NVIDIA's in-flight batcher set that a model is made from; None if from none."""
    if is_engine_model(model):
        return "tensorrt_llm"
    template, tensor = _TEXT_MODELS.get(model.name, (None, ""))
    return template if tensor in {declared.name for declared in model.config.input} else None


def is_engine_model(model: ModelSource) -> bool:
    """Whether it is served by TensorRT-LLM's C++ backend, or its python twin; its backend may not be filled in yet."""
    config = model.config
    if config.backend in _OTHER_BACKENDS:
        return False
    return BACKEND in (config.backend, config.platform) or "gpt_model_type" in config.parameters


def template_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Parameters of a model that is made from one of NVIDIA's templates."""
    if template := template_of(model):
        yield from _parameter_rules(model, template)


def _parameter_rules(model: ModelSource, template: ModelName) -> Iterator[Finding]:
    """A model's parameters against those that its template's code reads."""
    if not model.is_readable:
        return
    recorded = {parameter.key: parameter for parameter in recorded_model(template).parameters}
    for parameter in recorded.values():
        if parameter.required and parameter.key not in model.config.parameters:
            yield model.finding(
                "missing_parameter",
                f"parameter {parameter.key} is missing, and the model does not load without it",
                f'parameters {{ key: "{parameter.key}" value: {{ string_value: "{parameter.example}" }} }}',
            )
    for key in sorted(model.config.parameters):
        if key in recorded:
            yield from _value(model, recorded[key])
        elif key not in _OF_THE_PYTHON_BACKEND:
            yield model.finding(
                "unknown_parameter",
                f"no model of this kind reads parameter {key}: it has no effect",
                _right_name(key, list(recorded)),
                model.string_line(key),
            )


def _right_name(key: str, known: list[str]) -> str:
    bare = next((key.removeprefix(prefix) for prefix in PARAMETER_PREFIXES if key.startswith(prefix)), key)
    if bare in known:
        return bare
    advice = PARAMETERS.get(key) or PARAMETERS.get(bare)
    near = difflib.get_close_matches(bare, known, n=2, cutoff=0.6)
    return advice or (f"perhaps {' or '.join(near)}" if near else "take it out")


def _value(model: ModelSource, parameter: RecordedParameter) -> Iterator[Finding]:
    value = model.parameter(parameter.key)
    if "${" in value or parameter.accepts(value):
        return
    yield model.finding(
        "parameter_value",
        f"parameter {parameter.key} is {value!r}" if value else f"parameter {parameter.key} is empty",
        parameter.example,
        model.string_line(parameter.key),
        "error" if value or parameter.required else "warning",
    )


def text_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """What the parser refuses, and what it lets through although it is no value."""
    if not (model.directory / CONFIG_FILE).is_file():
        yield model.finding(
            "missing_config",
            f"there is no {CONFIG_FILE}",
            "write one: servers of TensorRT-LLM are started with --disable-auto-complete-config",
            severity="warning" if model.is_completed_by_server else "error",
            file="",
        )
    unset: list[Leftover] = []
    for leftover in find_leftovers(model.text):
        if leftover.parameter.startswith(FACT_PREFIX):
            continue
        if leftover.in_string and _is_optional(model, leftover.parameter):
            unset.append(leftover)
        else:
            yield _leftover(model, leftover)
    if unset:
        yield _unset(model, unset)
    for mistake in model.mistakes:
        yield model.finding(mistake.rule, mistake.message, mistake.fix, mistake.line)


def _leftover(model: ModelSource, leftover: Leftover) -> Finding:
    if not leftover.in_string:
        consequence = "the server cannot parse the file"
    elif leftover.parameter:
        consequence = f"parameter {leftover.parameter} is read as this very text"
    else:
        consequence = "the server takes it for the value"
    return model.finding(
        "leftover", f"{leftover.text} was never filled in: {consequence}", _value_for(leftover.name), leftover.line
    )


def _unset(model: ModelSource, leftovers: list[Leftover]) -> Finding:
    """One finding for all: NVIDIA's own examples fill in few of the optional parameters."""
    names = ", ".join(dict.fromkeys(leftover.parameter for leftover in leftovers))
    return model.finding(
        "leftover_optional",
        f"placeholders stand for optional parameters, and the backend takes them for unset: {names}",
        "write the values that differ from the defaults, or take the parameters out",
        leftovers[0].line,
        "warning",
    )


def _recorded_parameters() -> list[RecordedParameter]:
    return [parameter for name in MODEL_NAMES for parameter in recorded_model(name).parameters]


def _is_optional(model: ModelSource, key: str) -> bool:
    """Whether the model's template takes the parameter with a placeholder for one that is not set."""
    template = template_of(model)
    known = recorded_model(template).parameters if template else _recorded_parameters()
    found = [parameter for parameter in known if parameter.key == key]
    return bool(found) and not any(parameter.required for parameter in found)


def _value_for(name: str) -> str:
    """What may stand in the place of a variable of NVIDIA's templates."""
    legal = {parameter.template_name: parameter.example for parameter in _recorded_parameters()}
    return TEMPLATE_VALUES.get(name) or legal.get(name) or "write the value"

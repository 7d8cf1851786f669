"""Rules of the parameters that NVIDIA's templates have: required ones, unknown ones, legal values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from llm_pipeline.config.triton_names import ModelName
from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.known_mistakes import PARAMETER_PREFIXES, PARAMETERS
from llm_pipeline.serving.lint.repository import ModelSource, Repository
from llm_pipeline.serving.triton_config.recorded import RecordedParameter, recorded_model

_OF_THE_PYTHON_BACKEND = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_PYTHON_BACKEND_STUB")
_TEXT_MODELS: dict[str, tuple[ModelName, str]] = {
    "preprocessing": ("preprocessing", "QUERY"),
    "postprocessing": ("postprocessing", "TOKENS_BATCH"),
    "tensorrt_llm_bls": ("tensorrt_llm_bls", "text_input"),
}
"""Template by model name, and the input that shows that it is that template."""


def text_model_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """Parameters of the python models around an engine, where they have NVIDIA's names and tensors."""
    template, tensor = _TEXT_MODELS.get(model.name, (None, ""))
    if template and tensor in {declared.name for declared in model.config.input}:
        yield from parameter_rules(model, template)


def parameter_rules(model: ModelSource, template: ModelName) -> Iterator[Finding]:
    """A model's parameters against those that its template's code reads."""
    if not model.is_readable:
        return
    recorded = {parameter.key: parameter for parameter in recorded_model(template).parameters}
    for parameter in recorded.values():
        if parameter.required and parameter.key not in model.config.parameters:
            yield model.finding(
                "missing_parameter",
                f"parameter {parameter.key} is missing, and the model does not load without it",
                f'parameters {{ key: "{parameter.key}" value: {{ string_value: "{_example(parameter)}" }} }}',
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
    if "${" in value or _is_legal(value, parameter.legal):
        return
    yield model.finding(
        "parameter_value",
        f"parameter {parameter.key} is {value!r}" if value else f"parameter {parameter.key} is empty",
        f"{_example(parameter)}",
        model.string_line(parameter.key),
        "error" if value or parameter.required else "warning",
    )


def _is_legal(value: str, legal: object) -> bool:
    match legal:
        case ["true", "false", *_]:
            return value.lower() in ("true", "false", "1", "0")
        case list():
            return value in legal
        case {"type": "integer"} | "integer":
            return _is_number(value, int, legal)
        case {"type": "number"}:
            return _is_number(value, float, legal)
        case "integer or comma list":
            return all(_is_number(part, int, legal) for part in value.split(","))
    return bool(value)


def _is_number(value: str, kind: type[int | float], legal: object) -> bool:
    try:
        number = kind(value)
    except ValueError:
        return False
    limits = legal if isinstance(legal, dict) else {}
    return bool(limits.get("minimum", number) <= number <= limits.get("maximum", number))


def _example(parameter: RecordedParameter) -> str:
    match parameter.legal:
        case list() as values:
            return " or ".join(map(str, values))
        case {"type": kind, **limits}:
            return f"{kind} {', '.join(f'{name} {limit}' for name, limit in limits.items())}".strip()
    return f"{parameter.legal}"

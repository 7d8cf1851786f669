"""Rules on the text of a configuration: that it is there, parses, and has no placeholder left."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.artifacts.repository_layout import CONFIG_FILE, FACT_PREFIX
from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.known_mistakes import TEMPLATE_VALUES
from llm_pipeline.serving.lint.leftovers import Leftover, find_leftovers
from llm_pipeline.serving.lint.parameter_rules import template_of
from llm_pipeline.serving.lint.repository import ModelSource, Repository
from llm_pipeline.serving.triton_config.recorded import MODEL_NAMES, RecordedParameter, recorded_model


def text_rules(model: ModelSource, _: Repository) -> Iterator[Finding]:
    """What the parser refuses, and what it lets through although it is no value."""
    if not (model.directory / CONFIG_FILE).is_file():
        yield model.file_finding(
            "",
            "missing_config",
            f"there is no {CONFIG_FILE}",
            "write one: servers of TensorRT-LLM are started with --disable-auto-complete-config",
            "warning" if model.is_completed_by_server else "error",
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

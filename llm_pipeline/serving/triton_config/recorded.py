"""What is recorded of NVIDIA's model templates: tensors, parameters and the ensemble's wiring, with their sources."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from pydantic import JsonValue

from llm_pipeline.base.records import Frozen
from llm_pipeline.config.triton_names import ModelName

MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)


class RecordedTensor(Frozen):
    """An input or output of a template.

    Attributes:
        data_type: Triton's name of the type; or `logits`, `prompt_embedding_table` or `encoder_input_features`, whose
            type depends on the engine.
        dims: Without the batch; -1 for any.
        optional: Requests may leave it out.
        ragged: Requests of one batch may differ in shape.
        scalar: One element a request, which the backend sees without dimensions (`reshape: { shape: [] }`).
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    scalar: bool = False


class RecordedParameter(Frozen):
    """A parameter that a template's model reads.

    Attributes:
        key: As the model reads it.
        template_name: What the templates call it, where they have it.
        required: The model does not load without it.
        default: What holds without it, if known.
        legal: Legal values, limits, or a word for their kind.
    """

    key: str
    template_name: str | None
    required: bool
    default: JsonValue
    legal: JsonValue
    meaning: str

    @property
    def example(self) -> str:
        """Its legal values in words, for errors and advice."""
        match self.legal:
            case list() as values:
                return " or ".join(map(str, values))
            case {"type": kind, **limits}:
                return ", ".join([str(kind), *(f"{name} {limit}" for name, limit in limits.items())])
        return str(self.legal)

    def accepts(self, value: str) -> bool:
        """Whether the recorded limits allow a value; an empty one is never legal."""
        match self.legal:
            case ["true", "false", *_]:
                return value.lower() in ("true", "false", "1", "0")
            case list() as values:
                return value in values
            case {"type": "integer"} | "integer":
                return self._is_number(value, int)
            case {"type": "number"}:
                return self._is_number(value, float)
            case "integer or comma list":
                return all(self._is_number(part, int) for part in value.split(","))
        return bool(value)

    def _is_number(self, value: str, kind: type[int | float]) -> bool:
        try:
            number = kind(value)
        except ValueError:
            return False
        limits: dict[str, Any] = self.legal if isinstance(self.legal, dict) else {}
        return bool(limits.get("minimum", number) <= number <= limits.get("maximum", number))


class EnsembleStep(Frozen):
    """A step of the ensemble: tensors of its model, and the ensemble's tensors they are mapped to."""

    model: ModelName
    inputs: dict[str, str]
    outputs: dict[str, str]


class RecordedModel(Frozen):
    """The recorded template of one model: backend or platform, tensors, parameters and steps."""

    backend: str = ""
    platform: str = ""
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    parameters: tuple[RecordedParameter, ...]
    steps: tuple[EnsembleStep, ...] = ()


@cache
def recorded_model(name: ModelName) -> RecordedModel:
    """The template of a model of the in-flight batcher set."""
    return RecordedModel.model_validate(_table()["models"][name])


def legal_types(kind: str) -> tuple[str, ...]:
    """The types that a tensor may have: one, or several where it depends on the engine."""
    types: dict[str, list[str]] = _table()["data_types"]
    return tuple(types.get(kind, [kind]))


@cache
def _table() -> dict[str, Any]:
    text = (
        files("llm_pipeline.serving.triton_config")
        .joinpath("data", "inflight_batcher.json")
        .read_text(encoding="utf-8")
    )
    table: dict[str, Any] = json.loads(text)
    return table

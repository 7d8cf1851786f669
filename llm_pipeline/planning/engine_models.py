"""Whether an engine can load a model: by the architecture, and by how a published checkpoint is quantized already.

What the CPU engine traces is what its exporter takes with the Transformers that is installed in the model environment.
TensorRT-LLM's list of models is no limit, so a model that is not on it is a warning.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from llm_pipeline.catalog.openvino_exporter import newest_transformers
from llm_pipeline.catalog.runtime_versions import release_numbers
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.environment import Interpreter
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.target import Target
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.planning.compatibility import Refused

_MODEL_ENVIRONMENT = "model"
_OF_SEVERAL_PARTS = "ForConditionalGeneration"
"""End of the names of classes that read images or sounds beside text."""

_NO_GROUPS = frozenset({"phi"})
"""The exporter's sample of a KV cache has a head for each query head, which these fail on where heads share one."""


def engine_refusal(target: Target, facts: ModelFacts, transformers: str | None) -> Refused | None:
    """Why a target's engine cannot load a model.

    Args:
        target: Where it is to be served.
        facts: The model.
        transformers: Version in the environment that builds; None where it is not known: then nothing of it is judged.
    """
    if target.engine != "openvino_cpu":
        return None
    if facts.stored_format:
        return Refused(
            reason=f"the CPU engine reads plain weights and modelopt's formats, not {facts.stored_format}",
            nearest="the unquantized model, or a target with engine: tensorrt_llm_llmapi",
        )
    if facts.architecture.endswith(_OF_SEVERAL_PARTS):
        return Refused(
            reason=f"the CPU engine serves text, and its exporter traces {facts.architecture} with its encoders only",
            nearest="a checkpoint of the text model alone, or a target on a GPU",
        )
    return _export_refusal(facts, transformers)


def _export_refusal(facts: ModelFacts, transformers: str | None) -> Refused | None:
    """Why the CPU engine's exporter cannot trace a model."""
    table = _table("openvino_exporter")
    exporter, nearest = f"{table['exporter']} {table['version']}", "a target on a GPU"
    if facts.model_type not in table["architectures"]:
        reason = f"the CPU engine's exporter ({exporter}) does not know architecture {facts.model_type}"
        return Refused(reason=reason, nearest=nearest)
    if facts.model_type in _NO_GROUPS and facts.key_value_heads != facts.attention_heads:
        shared = f"{facts.key_value_heads} key and value heads, for {facts.attention_heads} query heads"
        return Refused(reason=f"{exporter} does not trace {facts.model_type} with {shared}", nearest=nearest)
    oldest, stated = table["architectures"][facts.model_type]
    newest = newest_transformers(facts.model_type, stated)
    if transformers is None or _within(transformers, oldest, newest):
        return None
    span = f"from {oldest} on" if newest is None else f"{oldest or 'old ones'} to {newest}"
    return Refused(
        reason=f"{exporter} traces {facts.model_type} with Transformers {span}, and {transformers} is installed",
        nearest=f"{nearest}, or a model environment with such a Transformers",
    )


def engine_doubts(target: Target, recipe: QuantizationRecipe, facts: ModelFacts) -> tuple[str, ...]:
    """What is not known of a model on a target's engine."""
    found = []
    if target.engine == "tensorrt_llm_llmapi" and facts.architecture:
        table = _table("tensorrt_llm_architectures")
        if facts.architecture not in table["architectures"]:
            found.append(f"{facts.architecture} is not in TensorRT-LLM's list of models: it may run all the same")
    if facts.stored_format and recipe.weights == "none" and target.engine != "openvino_cpu":
        found.append(
            f"the checkpoint is quantized already ({facts.stored_format}) and is served as it is: {target.engine} must "
            "read that format, and it is also what the baseline's scores are of"
        )
    return tuple(found)


def installed_transformers(deployment: Deployment) -> str | None:
    """Version of Transformers beside the interpreter of the model environment; None where it is not on this host."""
    environment = deployment.environments.get(_MODEL_ENVIRONMENT)
    if not isinstance(environment, Interpreter):
        return None
    packages = Path(environment.python).parent.parent.glob("lib/python*/site-packages/transformers-*.dist-info")
    return next((path.name.removesuffix(".dist-info").partition("-")[2] for path in packages), None)


def _within(version: str, oldest: str | None, newest: str | None) -> bool:
    """Whether a version is in a range; `5.0` as its end takes no 5.1, as the exporter counts."""
    numbers = release_numbers(version)
    return (oldest is None or release_numbers(oldest) <= numbers) and (
        newest is None or numbers <= release_numbers(newest)
    )


@cache
def _table(name: str) -> dict[str, Any]:
    text = files("llm_pipeline.catalog").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table

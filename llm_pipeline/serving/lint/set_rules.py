"""Rules of models that belong together: what one says must hold for the other."""

from __future__ import annotations

from collections.abc import Iterator

from llm_pipeline.serving.lint.finding import Finding
from llm_pipeline.serving.lint.parameter_rules import is_engine_model
from llm_pipeline.serving.lint.repository import ModelSource, Repository

_BLS = "tensorrt_llm_bls"
_BLS_PARAMETER = "tensorrt_llm_model_name"
_BLS_DEFAULT = "tensorrt_llm"
"""What NVIDIA's code calls where the parameter is empty or still a placeholder."""


def set_rules(model: ModelSource, repository: Repository) -> Iterator[Finding]:
    """The model that calls an engine's model by its name, as NVIDIA's BLS model does."""
    if model.name != _BLS and _BLS_PARAMETER not in model.config.parameters:
        return
    named = model.parameter(_BLS_PARAMETER)
    name = _BLS_DEFAULT if not named or named.startswith("${") else named
    called = repository.models.get(name)
    if called is None:
        yield model.finding(
            "unknown_model",
            f"it calls {name}, which the repository does not have",
            f"add it, or name another in {_BLS_PARAMETER}",
            model.string_line(_BLS_PARAMETER),
        )
    elif is_engine_model(called):
        yield from _same_policy(model, called)


def _same_policy(model: ModelSource, called: ModelSource) -> Iterator[Finding]:
    own, engine = (each.config.model_transaction_policy.decoupled for each in (model, called))
    if own and not engine:
        yield model.finding(
            "decoupled_differs",
            f"it is decoupled, {called.name} is not: streamed requests are refused there",
            f"decoupled: true in {called.name} too",
            model.field_line("model_transaction_policy"),
        )
    if engine and not own:
        yield model.finding(
            "decoupled_differs",
            f"{called.name} is decoupled, it is not: nobody can stream through it",
            "model_transaction_policy { decoupled: true }",
            model.field_line("model_transaction_policy"),
            "warning",
        )

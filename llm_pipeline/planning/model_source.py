"""The facts of a release's model, from the place that the release config names, or from what it states by hand.

A source that does not answer is an error, unless the release config states the sizes: then these are judged, with a
warning.
"""

from __future__ import annotations

from typing import NamedTuple

from llm_pipeline.base.errors import ConfigError, PipelineError, Transient, Unsupported
from llm_pipeline.config.release import ModelSource, ready_checkpoint
from llm_pipeline.hub.source import SourceRefused, SourceUnavailable, require_listening
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import BY_HAND, ModelDocuments, read_facts, stated_facts
from llm_pipeline.planning import host
from llm_pipeline.planning.background import BackgroundCall
from llm_pipeline.release.loading import LoadedRelease

_SECONDS = 20.0
"""How long a hub or a bucket may take at a terminal."""


class ModelLook(NamedTuple):
    """What is known of a model.

    Attributes:
        facts: None only where nobody was to be asked, and nothing is stated.
        warnings: What they rest on, where it is not the model itself.
    """

    facts: ModelFacts | None
    warnings: tuple[str, ...] = ()


def look_at_model(
    loaded: LoadedRelease, revision: str | None = None, seconds: float | None = None, *, required: bool = False
) -> ModelLook:
    """Read a release's model where it is.

    Args:
        loaded: The release.
        revision: Branch, tag or commit instead of the config's.
        seconds: How long the source may take; 0 asks it nothing.
        required: Stated sizes do not stand in for a source that does not answer.

    Raises:
        ConfigError: There is no such directory, or something of the model is not known: the hint says how to state it.
        SourceRefused: The source does not give it.
        SourceUnavailable: The source does not answer, and no sizes are stated.
        Unsupported: The model has no safetensors weights, or the model environment, if it is on this host, has no class
            for it.
    """
    asked, where = loaded.release.model, str(loaded.path)
    if seconds == 0:
        return ModelLook(stated_facts(asked.sizes))
    sources = {recipe.name: source for recipe in loaded.release.recipes if (source := ready_checkpoint(recipe))}

    def look() -> tuple[ModelDocuments, dict[str, ModelDocuments]]:
        documents = _look(loaded, asked, revision or asked.revision)
        return documents, {name: _look(loaded, source, source.revision) for name, source in sources.items()}

    try:
        documents, others = BackgroundCall(look, seconds or _SECONDS).answer()
    except (SourceRefused, SourceUnavailable, Transient) as error:
        if required or asked.sizes is None:
            raise _with_hint(error, where) from error
        facts = _facts(BY_HAND, asked, where)
        return ModelLook(facts, (f"the model is judged by {BY_HAND.origin}, not by its own files: {error.message}",))
    _require_loader(loaded, documents)
    ready = {name: _facts(one, sources[name], where) for name, one in others.items()}
    facts = _facts(documents, asked, where).model_copy(update={"ready": ready})
    return ModelLook(facts, tuple(_contradictions(documents, asked)))


def _look(loaded: LoadedRelease, asked: ModelSource, revision: str) -> ModelDocuments:
    if asked.source == "hub":
        require_listening(loaded.deployment.hub.endpoint)
    from llm_pipeline.hub.model_look import read_documents  # the hub's client is slow to import
    from llm_pipeline.hub.sources import open_source

    source = open_source(asked.source, loaded.deployment.hub, loaded.deployment.store)
    return read_documents(source.look(asked.id, revision))


def _require_loader(loaded: LoadedRelease, documents: ModelDocuments) -> None:
    known, named = host.causal_models(loaded.deployment), documents.config.get("model_type")
    if known is not None and isinstance(named, str) and named not in known.model_types:
        raise Unsupported(
            f"Transformers {known.version} of environment model has no causal language model for model_type "
            f"{named[:80]!r}, and code of a model's repository is never run",
            where=str(loaded.path),
            hint="release a model that it knows, or give that environment a Transformers that knows this one",
        )


def _facts(documents: ModelDocuments, asked: ModelSource, where: str) -> ModelFacts:
    try:
        return read_facts(documents, asked.sizes)
    except ConfigError as error:
        raise ConfigError(f"{asked.id}: {error.message}", where=where, hint=error.hint) from error


def _contradictions(documents: ModelDocuments, asked: ModelSource) -> list[str]:
    """Stated sizes that the model's config.json has otherwise: what is read counts."""
    nested = documents.config.get("text_config")
    config = nested if isinstance(nested, dict) else documents.config
    return [
        f"model.sizes.{name} is {value}, but the model's config.json says {config[name]}, which is used"
        for name, value in (asked.sizes or {}).items()
        if config.get(name, value) != value
    ]


def _with_hint(error: PipelineError, where: str) -> PipelineError:
    """The source's own error, with a hint how to go on without the source."""
    by_hand = "or state the model's sizes by hand in the release config, model.sizes"
    kind = type(error) if isinstance(error, SourceRefused | SourceUnavailable) else Transient
    hint = f"{error.hint}; {by_hand}" if error.hint else by_hand
    return kind(f"the model cannot be read: {error.message}", where=error.where or where, hint=hint)

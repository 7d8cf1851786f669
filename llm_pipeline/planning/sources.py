"""What a plan asks in the background: the store, and the source of the model; no longer than a person waits.

The store tells who holds the release's places, and how long the steps of its newest releases took. The facts of the
model come from the place that the release config names, or from what it states by hand. A source that does not answer
is an error, unless the release config states the sizes: then these are judged, with a warning.

The threads are daemons: a connection that hangs delays neither the answer nor the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from pydantic import ValidationError

from llm_pipeline.base.errors import PipelineError, Transient, Unsupported, located
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.release import ModelSource, ready_checkpoint
from llm_pipeline.hub.source import SourceRefused, SourceUnavailable, require_listening
from llm_pipeline.model_facts.facts import ModelFacts
from llm_pipeline.model_facts.reader import BY_HAND, ModelDocuments, read_facts, stated_facts
from llm_pipeline.planning import host
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.flow import steps_of
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.release.newest import newest_of_config
from llm_pipeline.release.step import Work
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import PlaceTaken, require_place

RELEASES_READ = 5
"""Newest releases whose results are read."""

_SOURCE_SECONDS = 20.0
"""How long a hub or a bucket may take at a terminal."""

Step = tuple[str, str]
"""A stage, and the subject it works on."""

Answer = TypeVar("Answer")


class BackgroundCall(Generic[Answer]):
    """Work in a thread that starts now. Its answer is awaited for `seconds` at most; None waits without limit."""

    def __init__(self, work: Callable[[], Answer], seconds: float | None = None) -> None:
        self._began, self._seconds = time.monotonic(), seconds
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._answer: list[Answer] = []
        self._error: BaseException | None = None
        self._thread.start()

    def answer(self) -> Answer:
        """The result of the work; its own errors are raised here.

        Raises:
            Transient: It has not ended in time. It goes on, and its answer is dropped.
        """
        spent = time.monotonic() - self._began
        self._thread.join(None if self._seconds is None else max(0.0, self._seconds - spent))
        if self._error is not None:
            raise self._error
        if not self._answer:
            raise Transient(f"no answer within {self._seconds:g} s")
        return self._answer[0]

    def _run(self, work: Callable[[], Answer]) -> None:
        try:
            self._answer.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
            self._error = error


@dataclass(frozen=True)
class History:
    """The results of a config's newest releases, the newest first, by stage and subject."""

    releases: tuple[Mapping[Step, StageResult], ...] = ()

    def seconds(self, step: Step) -> tuple[float, ...]:
        """How long a step took in the releases that computed it; a canary's only where it went to its end."""
        found = [one for results in self.releases if (one := results.get(step)) and not one.reused]
        if step[0] in steps_of(Work.BAKE):
            found = [one for one in found if one.judgement is None or one.judgement.verdict is Verdict.GO]
        return tuple(result.timings.total_seconds for result in found)


def read_history(store: ArtifactStore, config: str) -> History:
    """Read the newest releases of a config.

    Raises:
        Transient: The store cannot be read now.
        ConfigError: There is no such store.
    """
    newest = newest_of_config(store, config)[:RELEASES_READ]
    return History(tuple(_results(store, release_id) for release_id in newest))


def _results(store: ArtifactStore, release_id: str) -> dict[Step, StageResult]:
    names = store.list_documents(f"releases/{release_id}/results")
    read = [BackgroundCall(partial(_result, store, name)) for name in names]
    return {(result.stage, result.subject): result for one in read if (result := one.answer())}


def _result(store: ArtifactStore, name: str) -> StageResult | None:
    document = store.read_document(name)
    try:
        return StageResult.model_validate(document.value) if document else None
    except ValidationError:
        return None


@dataclass(frozen=True)
class StoreAnswer:
    """What the store says.

    Attributes:
        history: Empty where it did not answer.
        warnings: What is not known because it did not, and places that change hands.
    """

    history: History = History()
    warnings: tuple[str, ...] = ()


def ask_store(loaded: LoadedRelease, seconds: float, *, replace: bool) -> BackgroundCall[StoreAnswer] | None:
    """Ask the store in the background, for so long at most; not at all if no time is allowed."""

    def ask() -> StoreAnswer:
        store = open_store(loaded.deployment.store)
        warnings = _places(store, loaded, replace=replace)  # first: a store slow with releases must hide no holder
        return StoreAnswer(read_history(store, loaded.config.name), warnings)

    return BackgroundCall(ask, seconds) if seconds else None


def answer_of(asked: BackgroundCall[StoreAnswer] | None, loaded: LoadedRelease) -> StoreAnswer:
    """The store's answer; a warning instead if it has not answered in time.

    Raises:
        PlaceTaken: Another model holds one of the release's places, and it is not handed over.
        host.ForeignServer: Another deployment serves there.
    """
    if asked is None:
        return StoreAnswer()
    try:
        return asked.answer()
    except (PlaceTaken, host.ForeignServer):
        raise
    except (PipelineError, OSError) as error:
        uri, reason = loaded.deployment.store.uri, error.message if isinstance(error, PipelineError) else str(error)
        unknown = "which models hold the places and how long steps took before is not known"
        return StoreAnswer(warnings=(f"{unknown}: {uri} cannot be read now: {reason}",))


def _places(store: ArtifactStore, loaded: LoadedRelease, *, replace: bool) -> tuple[str, ...]:
    model_id, warnings = loaded.config.model.id, list[str]()
    for place in loaded.places.values():
        host.refuse_foreign_servers(store, loaded.deployment, place)
        try:
            holder = require_place(store, place, model_id).model_id
        except PlaceTaken as error:
            if not replace:
                raise
            warnings.append(f"{error.message}: it is handed over to {model_id}")
            continue
        if holder not in ("", model_id):
            warnings.append(
                f"place {place} is handed over by {holder}: its users get {model_id} once this release is promoted"
            )
    return tuple(warnings)


def look_at_model(
    loaded: LoadedRelease, revision: str | None = None, seconds: float | None = None, *, required: bool = False
) -> tuple[ModelFacts | None, tuple[str, ...]]:
    """Read a release's model where it is.

    Returns:
        The facts, None only where nobody was to be asked and nothing is stated; and what they rest on, as warnings,
        where it is not the model itself.

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
        return stated_facts(asked.sizes), ()
    sources = {recipe.name: source for recipe in loaded.release.recipes if (source := ready_checkpoint(recipe))}

    def look() -> tuple[ModelDocuments, dict[str, ModelDocuments]]:
        documents = _look(loaded, asked, revision or asked.revision)
        return documents, {name: _look(loaded, source, source.revision) for name, source in sources.items()}

    try:
        documents, others = BackgroundCall(look, seconds or _SOURCE_SECONDS).answer()
    except (SourceRefused, SourceUnavailable, Transient) as error:
        if required or asked.sizes is None:
            by_hand = "or state the model's sizes by hand in the release config, model.sizes"
            hint = f"{error.hint}; {by_hand}" if error.hint else by_hand
            kind = type(error) if isinstance(error, SourceRefused | SourceUnavailable) else Transient
            message = f"the model cannot be read: {error.message}"
            raise kind(message, where=error.where or where, hint=hint) from error
        told = f"the model is judged by {BY_HAND.origin}, not by its own files: {error.message}"
        return _facts(BY_HAND, asked, where), (told,)
    require_loader(loaded, documents)
    ready = {name: _facts(one, sources[name], where) for name, one in others.items()}
    return _facts(documents, asked, where).model_copy(update={"ready": ready}), ()


def _look(loaded: LoadedRelease, asked: ModelSource, revision: str) -> ModelDocuments:
    if asked.source == "hub":
        require_listening(loaded.deployment.hub.endpoint)
    from llm_pipeline.hub.model_look import read_documents  # the hub's client is slow to import
    from llm_pipeline.hub.sources import open_source

    source = open_source(asked.source, loaded.deployment.hub, loaded.deployment.store)
    return read_documents(source.look(asked.id, revision))


def require_loader(loaded: LoadedRelease, documents: ModelDocuments) -> None:
    """Refuse a model that the Transformers of the model environment, if it is on this host, has no class for.

    Raises:
        Unsupported: It has none.
    """
    known, named = host.causal_models(loaded.deployment), documents.config.get("model_type")
    if known is not None and isinstance(named, str) and named not in known.model_types:
        raise Unsupported(
            f"Transformers {known.version} of environment model has no causal language model for model_type "
            f"{named[:80]!r}, and code of a model's repository is never run",
            where=str(loaded.path),
            hint="release a model that it knows, or give that environment a Transformers that knows this one",
        )


def _facts(documents: ModelDocuments, asked: ModelSource, where: str) -> ModelFacts:
    with located(asked.id, where):
        return read_facts(documents, asked.sizes)

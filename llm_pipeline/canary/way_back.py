"""Taking a release back on a person's word: an unfinished canary, and production to the release before it.

Asked twice, it is done once. What was left and what was brought back is written down before anything moves, so a second
request finds that it is where the first one wanted to be; to swap again, the release that serves now must be named.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.canary.moving import Patience
from llm_pipeline.canary.open_router import router_as_it_is
from llm_pipeline.canary.promotion import rollback_production
from llm_pipeline.canary.record import current_canary, read_record
from llm_pipeline.canary.rollback import ensure_rolled_back
from llm_pipeline.canary.slots import slot_ports, slots_of
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.errors import ConfigError
from llm_pipeline.logging import get_logger
from llm_pipeline.stages.contract import Frozen
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood
from llm_pipeline.store.model_documents import ModelDocument
from llm_pipeline.store.places import refuse_stranger
from llm_pipeline.store.pointers import Pointers, read_pointers

log = get_logger(__name__)


class WayBack(Frozen):
    """The last time that production was taken back on a target.

    Attributes:
        left: The release that served.
        to: The release that was brought back.
        by: Who asked for it, and why.
    """

    left: str
    to: str
    by: str
    asked_at: datetime


def take_back_canary(store: ArtifactStore, deployment: Deployment, target: str, *, by: str) -> str | None:
    """Give the traffic of a target's unfinished canary back to stable; the release, or None when there is none.

    Raises:
        ConfigError: The deployment has no such place.
        Transient: It cannot be done now; the same call is safe again.
    """
    _check_place(deployment, target)
    release_id = current_canary(store, target)
    record = read_record(store, release_id, target) if release_id else None
    if release_id is None or record is None or (record.settled and record.traffic_confirmed is not False):
        log.info("no canary to take back", gpu_target=target)
        return None
    place, state_root = deployment.places[target], Path(deployment.state_root)
    ensure_rolled_back(
        store,
        release_id,
        target,
        router=router_as_it_is(place.router, slot_ports(place), state_root / target / "router"),
        slots=slots_of(store, deployment, target),
        patience=Patience.with_router(place.router),
        by=by,
    )
    return release_id


def take_back_production(
    store: ArtifactStore, deployment: Deployment, model_id: str, target: str, *, by: str, leaving: str = ""
) -> Pointers:
    """Bring the release before production back; an unfinished canary on the target is taken back first.

    Args:
        store: The deployment's.
        deployment: Where the target's servers are.
        model_id: `organisation/name`.
        target: The target's name.
        by: Who asks for it, and why.
        leaving: The id, or its beginning, of the release that must serve now; empty for whichever does, if production
            was not taken back before.

    Raises:
        ConfigError: There is no such place, no release to go back to, or another one serves than was named.
        PipelineError: The previous release cannot be started; traffic then stays where it is.
    """
    _check_place(deployment, target)
    refuse_stranger(store, target, model_id)
    pointers, _ = read_pointers(store, model_id, target)
    production, previous = pointers.production, pointers.previous
    if production is None or previous is None:
        raise ConfigError(f"{model_id} has no previous release on {target}", hint="there is nothing to go back to")
    if not production.release_id.startswith(leaving):
        raise ConfigError(
            f"{production.release_id} serves on {target}, not {leaving}", hint="nothing was moved; look, then ask again"
        )
    done = _read(store, model_id, target)
    if not leaving and done is not None and (done.left, done.to) == (previous.release_id, production.release_id):
        log.info(f"{done.left} was taken back before: {done.to} serves", by=done.by, asked_at=done.asked_at.isoformat())
        return pointers
    take_back_canary(store, deployment, target, by=by)
    _write(
        store,
        model_id,
        target,
        WayBack(left=production.release_id, to=previous.release_id, by=by, asked_at=datetime.now(UTC)),
    )
    return rollback_production(store, deployment, model_id, target)


def _check_place(deployment: Deployment, target: str) -> None:
    if target not in deployment.places:
        raise ConfigError(f"deployment {deployment.name} has no place for {target!r}", where=deployment.name)


def _document(model_id: str, target: str) -> ModelDocument:
    return ModelDocument.of(f"ways_back/{{model}}/{target}.json", model_id)


def _read(store: ArtifactStore, model_id: str, target: str) -> WayBack | None:
    place = _document(model_id, target)
    document = place.read(store)
    return understood(WayBack, document.value, place.name, hint="remove this document") if document else None


def _write(store: ArtifactStore, model_id: str, target: str, way_back: WayBack) -> None:
    place = _document(model_id, target)
    known = place.read(store)
    place.write(store, way_back.model_dump(mode="json"), known.revision if known else None)

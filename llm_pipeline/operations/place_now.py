"""Where a model is served, and what its documents say of that now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.canary.patience import Patience
from llm_pipeline.canary.record import CanaryRecord, Phase, current_canary, read_record
from llm_pipeline.canary.router import SlotName, TrafficRouter, other_slot
from llm_pipeline.canary.slots import SlotControl
from llm_pipeline.canary.way_back_record import read_way_back
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.model_documents import model_of_release
from llm_pipeline.store.places import serving_at
from llm_pipeline.store.pointers import Pointer, Pointers


@dataclass(frozen=True)
class ServedPlace:
    """Where a model is served on a target.

    Attributes:
        find_router: Finds the target's router, or starts it; it says None where none ever ran.
        patience: How long each part of a rollback is tried.
    """

    store: ArtifactStore
    model_id: str
    target: str
    find_router: Callable[[], TrafficRouter | None]
    slots: SlotControl
    patience: Patience

    @cached_property
    def router(self) -> TrafficRouter | None:
        """The router, found when it is needed first."""
        return self.find_router()


def on_trial(place: ServedPlace, pointers: Pointers) -> CanaryRecord | None:
    """The canary that has not ended, or whose promotion is not settled yet.

    Raises:
        ConfigError: It is another model's.
    """
    release_id = current_canary(place.store, place.target)
    record = read_record(place.store, release_id, place.target) if release_id else None
    production = pointers.production
    if record is None or (production is not None and production.release_id == record.release_id):
        return None
    since = production.promoted_at if production is not None else _since_handed_over(place)
    unsettled = record.phase is Phase.PROMOTED and record.production_since == since
    if record.settled and record.traffic_confirmed is not False and not unsettled:
        return None
    model = model_of_release(place.store, record.release_id)
    if model not in (None, place.model_id):
        hint = f"roll back {model} instead"
        raise ConfigError(f"release {record.release_id} of {model} is on trial on {place.target}", hint=hint)
    return record


def _since_handed_over(place: ServedPlace) -> datetime | None:
    """Since when another model has served here, if this one is about to take its place over."""
    serving = serving_at(place.store, place.target)
    return serving.pointer.promoted_at if serving else None


def newest(trial: CanaryRecord | None, production: Pointer | None) -> str:
    """The release that a rollback without a name leaves; empty when there is none."""
    return trial.release_id if trial is not None else production.release_id if production is not None else ""


def left_for(place: ServedPlace, production: Pointer) -> str | None:
    """The release that was taken back last, if this production is there because of that."""
    release_id = current_canary(place.store, place.target)
    record = read_record(place.store, release_id, place.target) if release_id else None
    ended = record is not None and record.phase is Phase.ROLLED_BACK
    if record is not None and ended and record.production_since == production.promoted_at:
        return record.release_id
    last = read_way_back(place.store, place.model_id, place.target)
    served = last is not None and last.to == production.release_id and production.promoted_at >= last.asked_at
    return last.left if last is not None and served else None


def free_slot(previous: Pointer, production: Pointer) -> SlotName:
    """The previous release's own slot; never the one that serves production now."""
    return previous.slot if previous.slot != production.slot else other_slot(production.slot)

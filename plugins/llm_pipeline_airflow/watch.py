"""The release watch in Airflow: a trigger that looks at the hub, the asset it changes, and a release DAG's schedule.

The trigger runs in the triggerer for as long as its DAG is not paused. What it remembers is in Airflow's asset state
store; which run took up a commit is in the artifact store, and settles what a lost event or a killed triggerer leaves
open (see `llm_pipeline.hub.watch`, which decides everything).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from pydantic import Field, ValidationError

from llm_pipeline.base.errors import ConfigError, PipelineError, as_pipeline_error
from llm_pipeline.config.deployment import HubAccess
from llm_pipeline.config.model import ConfigModel
from llm_pipeline.config.release import Watch
from llm_pipeline.config.store import Store
from llm_pipeline.hub.watch import DAY, Reference, Trouble, WatchDecision, WatchState, decide
from llm_pipeline.release.loading import LoadedRelease
from llm_pipeline.release.watch_record import WatchStatus, read_claim, read_claims, read_status, write_status
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline_airflow.connections import fetch_secrets
from llm_pipeline_airflow.dag_options import cron_timetable
from llm_pipeline_airflow.faults import get_logger, known_fault
from llm_pipeline_airflow.settings import dag_id_of

log = get_logger(__name__)

STATE_KEY = "watch"
_ON_THEIR_WAY = ["queued", "running"]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REQUEST_ID = re.compile(r"\s*\(Request ID:[^)]*\)")
_NO_MEMORY = WatchDecision("the watch cannot use its stored state", look_again_seconds=60.0, trouble=True)


class Watched(ConfigModel):
    """All that a trigger needs to know of a release config; it reads no file, for a triggerer may have none."""

    config: str
    dag_id: str
    model_id: str
    revision: str
    watch: Watch
    hub: HubAccess
    store: Store
    connections: dict[str, str] = Field(default={})


def release_schedule(loaded: LoadedRelease) -> Asset | AssetOrTimeSchedule | CronTriggerTimetable | None:
    """What starts a release DAG by itself: its watch, its cron expression (UTC), either of them, or nothing.

    Raises:
        ConfigError: The cron expression is none, or what is to be watched never changes.
    """
    timetable = cron_timetable(loaded.config.schedule, key="schedule", where=str(loaded.path))
    if loaded.config.watch is None:
        return timetable
    asset = watched_asset(loaded, loaded.config.watch)
    return asset if timetable is None else AssetOrTimeSchedule(assets=asset, timetable=timetable)


class WatchedRevision(Asset):
    """A revision that a release DAG watches.

    Airflow hashes a DAG, and with it its schedule, several times an edge. `Asset` dumps all its fields to JSON for
    that: a fifth of the time that a release config was parsed in.
    """

    def __hash__(self) -> int:
        """Equal assets have the same URI."""
        return hash(self.uri)


def watched_asset(loaded: LoadedRelease, watch: Watch) -> WatchedRevision:
    """The watched revision as an asset; another model or revision is another asset, with a state of its own.

    Raises:
        ConfigError: What is to be watched never changes.
    """
    if loaded.config.model.source != "hub" or _COMMIT.fullmatch(loaded.config.model.revision):
        hint = "remove `watch:`; `schedule:` works with every source"
        raise ConfigError("watch: needs a branch or a tag of a model on the hub", where=str(loaded.path), hint=hint)
    config = loaded.config
    watched = Watched(
        config=config.name,
        dag_id=dag_id_of(loaded.path),
        model_id=config.model.id,
        revision=config.model.revision,
        watch=watch,
        hub=loaded.deployment.hub,
        store=loaded.deployment.store,
        connections=loaded.deployment.airflow_connections,
    )
    return WatchedRevision(
        name=f"{config.model.id}@{config.model.revision} for {config.name}",
        uri=f"x-llm-release://{config.name}/{config.model.id}@{config.model.revision}",
        group="llm-release",
        watchers=[AssetWatcher(name="hub", trigger=HubRevisionTrigger(watched.model_dump_json()))],
    )


class HubRevisionTrigger(BaseEventTrigger):
    """Fires when the policy of a release config says that the watched revision has a commit to release.

    The payload of its events is a `llm_pipeline.hub.watch.Start`.

    Args:
        watched: A `Watched` as JSON. One string, because Airflow compares a trigger's arguments at every parse of
            its DAG, and starts it anew when they differ.
    """

    def __init__(self, watched: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._json = watched
        self.watched = Watched.model_validate_json(watched)
        self._last_fault = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments; see `BaseTrigger`."""
        return "llm_pipeline_airflow.watch.HubRevisionTrigger", {"watched": self._json}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, decide, remember, fire; for ever."""
        state: WatchState | None = None
        while True:
            decision = _NO_MEMORY
            try:
                if self.watched.connections:
                    await sync_to_async(fetch_secrets)(self.watched.connections)
                if state is None:
                    state = await self._recall()
                decided, decision = await self._look(state)
                if decided != state:
                    await self._remember(decided)
                    if decided.words != state.words:
                        level = logging.WARNING if decision.trouble else logging.INFO
                        log.log(level, "release watch of %s: %s", self.watched.config, decision.words)
                    state = decided
            except Exception as error:  # noqa: BLE001 - the watch goes on, whatever one look met
                # Nothing was remembered, so nothing may be started: an event without a memory could be made twice.
                what = f"the release watch of {self.watched.config}"
                log.warning("%s cannot use its stored state: %s", what, self._known(error, what))
                decision = _NO_MEMORY
            if decision.start is not None:
                yield TriggerEvent(decision.start.model_dump(mode="json"))  # type: ignore[no-untyped-call]
            await asyncio.sleep(decision.look_again_seconds)

    async def _recall(self) -> WatchState:
        """The state of before; when there is none, what the runs of before claimed is where the watch starts from."""
        kept = await self._memory().aget(STATE_KEY)
        if kept is not None:
            try:
                return WatchState.model_validate(kept)
            except ValidationError as error:
                log.warning("the stored state of the watch of %s cannot be read: %s", self.watched.config, error)
        return await asyncio.to_thread(self._state_of_claims)

    async def _remember(self, state: WatchState) -> None:
        await self._memory().aset(STATE_KEY, state.model_dump(mode="json"))

    def _memory(self) -> Any:
        if self.asset_state_store is None:
            raise AirflowException("this triggerer gave the trigger no asset state store")
        return self.asset_state_store

    def _state_of_claims(self) -> WatchState:
        claims = read_claims(self._store, self.watched.config)
        if not claims:
            return WatchState()
        now = datetime.now(UTC)
        starts = [claim.claimed_at for claim in claims if claim.cause == "watch" and now - claim.claimed_at < DAY]
        reference = Reference(commit=claims[-1].commit, content=claims[-1].content)
        return WatchState(reference=reference, starts=tuple(starts))

    async def _look(self, state: WatchState) -> tuple[WatchState, WatchDecision]:
        try:
            busy = state.firing is not None and await _runs_on_their_way(self.watched.dag_id)
            decided, decision = await asyncio.to_thread(self._decide, state, busy=busy)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may do better
            known = self._known(error, f"a look of the release watch of {self.watched.config}")
            message = _REQUEST_ID.sub("", str(known))  # the same trouble is told once
            trouble = Trouble(message, getattr(error, "retry_after_seconds", None))
            decided, decision = decide(self.watched.watch, state, trouble, datetime.now(UTC))
        await asyncio.to_thread(self._show, decided, decision)
        return decided, decision

    def _decide(self, state: WatchState, *, busy: bool) -> tuple[WatchState, WatchDecision]:
        """One look at the hub and the store, and what it leads to; blocking."""
        from llm_pipeline.hub.access import connect
        from llm_pipeline.hub.observe import observe

        watched, store = self.watched, self._store
        hub = connect(watched.hub.endpoint, watched.hub.token_variable)
        head = observe(hub, watched.model_id, watched.revision, state.reference)
        commits = {head.commit} | ({state.firing.commit} if state.firing else set())
        claims = {one: claim.run for one in commits if (claim := read_claim(store, watched.config, one))}
        return decide(watched.watch, state, replace(head, claims=claims, busy=busy), datetime.now(UTC))

    @cached_property
    def _store(self) -> ArtifactStore:
        return open_store(self.watched.store)

    def _show(self, state: WatchState, decision: WatchDecision) -> None:
        """Write the decision for people; a store that cannot be written shows when claims are read."""
        watched, now = self.watched, datetime.now(UTC)
        try:
            known = read_status(self._store, watched.config)
            same = known is not None and (known.words, known.commit) == (decision.words, state.head)
            status = WatchStatus(
                config=watched.config,
                model=watched.model_id,
                revision=watched.revision,
                commit=state.head,
                words=decision.words,
                since=known.since if known is not None and same else now,
                checked_at=now,
            )
            write_status(self._store, status)
        except Exception as error:  # noqa: BLE001 - what is decided does not depend on it
            self._known(error, f"writing the status of the release watch of {watched.config}")

    def _known(self, error: Exception, what: str) -> PipelineError | Exception:
        """The error to tell of; the traceback of a fault is logged when it is another one than the last time."""
        if isinstance(error, (AirflowException, AirflowRuntimeError)):  # Airflow's API server does not answer
            return error
        if repr(error) == self._last_fault:
            return as_pipeline_error(error)
        self._last_fault = repr(error)
        return known_fault(error, what)


async def _runs_on_their_way(dag_id: str) -> bool:
    """Whether a run of the DAG is queued or running: what was started may be waiting behind it."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return await asyncio.to_thread(RuntimeTaskInstance.get_dr_count, dag_id=dag_id, states=_ON_THEIR_WAY) > 0

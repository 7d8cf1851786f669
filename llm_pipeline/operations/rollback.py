"""The rollback: one operation for every caller, from a release to the one that served before it.

| what the release is | what happens |
|---|---|
| on trial | its canary ends, stable has all traffic |
| promoted, not yet settled | the same; it can no longer be settled |
| production | the release before it is production, is made to answer, and takes all traffic |

It names what it leaves, so that asking twice changes nothing: without a name that is what is on trial, or else what
serves, unless that is there because another release was just taken back. What was taken back is never gone back to.

It is one edit of the place's document, before anything moves. Killed anywhere, the next one who asks carries it out, or
the guard does; each part can be done again. Users are moved to a server that answers, before any server is stopped.

While the store accepts no writes nothing is moved, but by `force`: it goes by what router and servers show, stops
nothing, and the same rollback without it records what was done once the store takes it.

`ensure_rolled_back` is the teardown of a release: its canary ends unless it was promoted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.canary.moving import (
    end_canary,
    epoch_above,
    have_answering,
    retire,
    token_of,
    traffic_to,
    wait_usable,
)
from llm_pipeline.canary.record import (
    LEASE_SECONDS,
    CanaryJournal,
    CanaryRecord,
    EventKind,
    Phase,
    latest_canary,
    lease_name,
    read_canary_record,
    take_over,
    taken_back,
)
from llm_pipeline.canary.router import RouterUnavailable, all_to, other_slot
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.operations.served_place import despite_others, is_recent, last_heard
from llm_pipeline.release.trusted_pointers import require_served
from llm_pipeline.store.lease import Lease, LeaseHeld
from llm_pipeline.store.place_state import PlaceState, Pointer, WayBack, edit_place, read_place, refuse_stranger
from llm_pipeline.store.references import model_of_release

log = get_logger(__name__)

_OTHERS_SECONDS = 15.0
_FORCED = "forced rollback"
"""How the routes' owner begins after one."""


def roll_back(place: ServedPlace, *, by: str, leaving: str = "") -> PlaceState:
    """Leave a release and bring back the one before it; whoever drives the target's canary is fenced off.

    Args:
        place: Where.
        by: Who asks for it, and why.
        leaving: The id of the release to leave, or its beginning; empty for what is on trial, or else what serves.

    Returns:
        The place afterwards.

    Raises:
        PlaceTaken: Another model holds the place.
        ConfigError: There is nothing to go back to, or the release neither serves nor is on trial.
        NoWayBack: What is gone back to does not answer and cannot be started; traffic stays where it is answered.
        PipelineError: It cannot be done now; the same call is safe again.
    """
    refuse_stranger(place.store, place.target, place.model_id)
    state = read_place(place.store, place.target)
    meant = leaving or _newest(_on_trial(place, state), state.of(place.model_id).production)

    def attempt() -> PlaceState:
        take_over(place.store, place.target)
        with Lease(place.store, lease_name(place.target), seconds=LEASE_SECONDS) as lease:
            return _RollBack(place, lease, by).run(leaving, meant)

    return despite_others(attempt)


def force(place: ServedPlace, *, by: str) -> str:
    """Without the store, move all users to the slot that is not on trial, or that does not serve most of them now.

    Nothing is recorded and nothing is stopped; its server is started if it has ended and the store can still say what
    it served.

    Args:
        place: Where, with its router as it is.
        by: Who asks for it.

    Returns:
        Where the users are, in words.

    Raises:
        ConfigError: No router ever ran here.
        NoWayBack: Its server does not answer and cannot be started; the traffic stays where it is.
        RouterUnavailable: The routes cannot be written.
    """
    router, slots = place.router, place.slots
    if router is None:
        raise ConfigError(f"no router ever ran for {place.target} on this host", hint="run this on the place's host")
    state = router.read()[0]
    busiest = max(state.weights, key=lambda one: state.weights[one])
    if state.owner.startswith(_FORCED):
        return f"all traffic was on {busiest} already"
    known, trial = PlaceState(), None
    try:
        known, trial = read_place(place.store, place.target), latest_canary(place.store, place.target)
    except PipelineError as error:
        log.warning("what the store says of this place cannot be read", reason=str(error))
    candidate = state.candidate or (trial.candidate if trial is not None and not trial.settled else None)
    slot, token = other_slot(candidate or busiest), slots.newest()
    served = {one.slot: one.repository for one in (known.previous, known.production) if one is not None}
    if have_answering(slots, slot, served.get(slot), token, seconds=place.patience.prove):
        wait_usable(router, slot, place.patience.usable)
    epoch = epoch_above(0, state.epoch, token.epoch)
    confirmed = traffic_to(router, all_to(slot, owner=f"{_FORCED} by {by}", epoch=epoch), place.patience)
    return f"all traffic is on {slot}" + ("" if confirmed else ", which the router did not confirm")


def carry_on(place: ServedPlace) -> WayBack | None:
    """Complete a rollback whose process has ended; returns it, or None if there is none or its process still runs.

    Raises:
        PipelineError: It cannot be done now; the same call is safe again.
    """
    found = read_place(place.store, place.target).way_back
    if found is None or found.done:
        return None
    try:
        with Lease(place.store, lease_name(place.target), seconds=LEASE_SECONDS) as lease:
            _RollBack(place, lease, found.by).finish_last()
    except LeaseHeld:
        return None
    return found


@dataclass(frozen=True)
class _RollBack:
    """One rollback, by the holder of the target's lease."""

    place: ServedPlace
    lease: Lease
    by: str

    def run(self, leaving: str, meant: str) -> PlaceState:
        """Rolls back; `meant` is the release that it would have left when it was requested."""
        last = self.finish_last()
        if last is not None and (not leaving or last.left.startswith(leaving)):
            return self._state()
        state = self._state()
        trial, mine = _on_trial(self.place, state), state.of(self.place.model_id)
        production = mine.production
        if not leaving and meant != _newest(trial, production):
            log.info(f"{meant or 'nothing'} is no longer what would be left: nothing was changed")
            return state
        if trial is not None and (not leaving or trial.release_id.startswith(leaving)):
            return self._leave_trial(trial, production)
        if production is None or not production.release_id.startswith(leaving):
            last = state.way_back
            before = (*mine.taken_back, last.left) if last is not None else mine.taken_back
            if leaving and any(release_id.startswith(leaving) for release_id in before):
                log.info(f"{leaving} was rolled back before: nothing was changed")
                return mine
            serves = f"{production.release_id} serves" if production is not None else "nothing serves"
            about = f", and {leaving} is not on trial" if leaving else ""
            hint = "nothing was moved; check with `llm-pipeline status`, then try again"
            raise ConfigError(f"{serves} on {self.place.target}{about}", hint=hint)
        record, last = latest_canary(self.place.store, self.place.target), state.way_back
        is_back = last is not None and last.to == production.release_id and production.promoted_at >= last.asked_at
        if record is not None and record.phase is Phase.ROLLED_BACK:
            is_back |= record.production_since == production.promoted_at
        if not leaving and is_back:
            log.info(f"{production.release_id} serves since another was rolled back: nothing was changed")
            return state
        if mine.previous is None:
            hint = "release another one: a release that was rolled back does not return"
            raise ConfigError(f"{self.place.model_id} has no previous release on {self.place.target}", hint=hint)
        require_served(self.place.store, self.place.model_id, self.place.target, mine.previous)
        if trial is not None:
            self._leave_trial(trial, production)
        return self._leave_production(production, mine.previous)

    def finish_last(self) -> WayBack | None:
        """Carry out the last way back, if it is not done; returns it if so."""
        state = self._state()
        found, trial, production = state.way_back, _on_trial(self.place, state), state.production
        if found is None or found.done:
            return None
        unused = trial is None or not trial.candidate_started  # the other slot; a canary there found the traffic moved
        if trial is not None and (trial.release_id, trial.began_at) == (found.left, found.began_at):
            journal = CanaryJournal(self.place.store, trial.release_id, self.place.target)
            end_canary(journal, self.place, lease=self.lease, by=self.by, even_promoted=True)
        elif production is not None and found.began_at is None and production.release_id == found.to and unused:
            self._bring_back(production, found)
        self._edit(lambda state: state.model_copy(update={"way_back": found.model_copy(update={"done": True})}))
        return found

    def _leave_trial(self, trial: CanaryRecord, production: Pointer | None) -> PlaceState:
        if trial.phase is Phase.PROMOTED and trial.stable is None:
            hint = "it is the first one on this target: release another one"
            raise ConfigError(f"there is no release to return to from {trial.release_id}", hint=hint)
        to = production.release_id if production is not None else ""
        way_back = self._way_back(trial.release_id, to, trial.repository, began_at=trial.began_at)

        def leave(state: PlaceState) -> PlaceState:
            left = state.model_copy(update={"way_back": way_back})
            return left.taking_back(trial.release_id) if trial.phase is Phase.PROMOTED else left

        self._edit(leave)  # whoever is about to settle it finds it taken back
        self.finish_last()
        return self._state()

    def _leave_production(self, production: Pointer, previous: Pointer) -> PlaceState:
        """One edit: the release before it is production. What that needs is done afterwards, by whoever comes."""
        way_back = self._way_back(production.release_id, previous.release_id, production.repository)
        free = other_slot(production.slot)  # its own slot, or at least not the one that serves now
        back = {"slot": free, "promoted_at": way_back.asked_at}
        changes = {
            "production": previous.model_copy(update=back),
            "previous": None,
            "previous_model": "",
            "keep_until": None,
            "way_back": way_back,
        }
        self._edit(lambda state: state.model_copy(update=changes).taking_back(production.release_id))
        self.finish_last()
        return self._state()

    def _way_back(self, left: str, to: str, repository: ArtifactRef, began_at: float | None = None) -> WayBack:
        now = datetime.now(UTC)
        return WayBack(left=left, to=to, by=self.by, asked_at=now, repository=repository, began_at=began_at)

    def _bring_back(self, production: Pointer, found: WayBack) -> None:
        """Have production answer, move the traffic, and only then stop the server of the release that was left."""
        router, slots, slot = self.place.router, self.place.slots, production.slot
        if router is None:
            raise RouterUnavailable("production cannot be rolled back from here", where=self.place.target)
        require_served(self.place.store, self.place.model_id, self.place.target, production)
        token, warm = token_of(self.lease, self.place), slots.alive(slot)
        slots.replace(slot, production.repository, token)
        router.name_release(slot, production.release_id)
        warm &= not have_answering(slots, slot, production.repository, token, seconds=self.place.patience.prove)
        if not warm:
            slots.warm_up(slot, production.repository)
            wait_usable(router, slot, self.place.patience.usable)
        log.info(f"release {production.release_id} answers", slot=slot, was_warm=warm)
        self.lease.check()
        want, state = all_to(slot, owner=f"rollback to {found.to}", epoch=token.epoch), router.read()[0]
        if not state.same_traffic(want) or state.standby is not None:
            traffic_to(router, want, self.place.patience)
        journal = CanaryJournal(self.place.store, found.left, self.place.target)
        record = journal.load()
        seconds = (record.policy if record else CanaryPolicy()).drain_seconds
        cut = retire(self.place, other_slot(slot), found.repository, token=token, drain_seconds=seconds)
        if record is not None and record.phase is Phase.PROMOTED:  # for reports, and for its next run
            judgement = taken_back("in production", 100.0, self.by)
            words = "; ".join(filter(None, (judgement.summary, cut)))
            record = record.with_event(EventKind.ROLLED_BACK, words, by=self.by, percent=0.0)
            changes = {"phase": Phase.ROLLED_BACK, "judgement": judgement, "traffic_confirmed": True}
            journal.save(record.model_copy(update={**changes, "epoch": max(token.epoch, record.epoch + 1)}))
        log.info("production rolled back", release=found.to, slot=slot)

    def _state(self) -> PlaceState:
        return read_place(self.place.store, self.place.target)

    def _edit(self, edit: Callable[[PlaceState], PlaceState]) -> None:
        def confirmed(state: PlaceState) -> PlaceState:
            self.lease.confirm()
            return edit(state)

        edit_place(self.place.store, self.place.target, confirmed)


def ensure_rolled_back(place: ServedPlace, release_id: str, *, leave_paused: bool = False) -> CanaryRecord | None:
    """End a release's canary with all traffic on stable, unless it was promoted or rolled back already.

    Whoever drives the canary at this moment is fenced off first: its lease, its record and its router writes.

    Args:
        place: Where, with its router as it is.
        release_id: The release on trial.
        leave_paused: A canary that waits for a person is left to wait, if a guard is there to watch its deadline.

    Returns:
        The canary's record; None when it never began.

    Raises:
        RouterUnavailable: The routes could not be written for as long as `patience` allows.
        Transient: The store could not record it; the same call is safe again.
    """
    store, target = place.store, place.target
    journal = CanaryJournal(store, release_id, target)

    def attempt() -> CanaryRecord | None:
        record = journal.load()
        if record is None or (record.settled and record.traffic_confirmed is not False):
            log.info("nothing to roll back", phase=record.phase.value if record else "never began")
            return record
        if leave_paused and record.phase is Phase.PAUSED:
            if is_recent(last_heard(store, target)):
                words = "the canary is waiting for a person; the guard watches its deadline"
                log.info(words, percent=record.share_percent)
                return record
            log.warning("a person may answer it, but no guard watches its deadline: unpause the guard's DAG")
        take_over(store, target)
        with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as lease:
            return end_canary(journal, place, lease=lease, by="the end of its run")

    def over() -> bool:
        found = journal.load()
        return found is None or found.phase is not Phase.ROLLING_BACK

    return despite_others(attempt, lambda: wait_until(over, place.patience.confirm + _OTHERS_SECONDS))


def _on_trial(place: ServedPlace, state: PlaceState) -> CanaryRecord | None:
    """The canary that has not ended, or whose promotion is not settled yet.

    Raises:
        ConfigError: It is another model's.
    """
    record = read_canary_record(place.store, state.on_trial, place.target) if state.on_trial else None
    production = state.production
    if record is None or (production is not None and production.release_id == record.release_id):
        return None
    since = production.promoted_at if production is not None else None
    unsettled = record.phase is Phase.PROMOTED and record.production_since == since
    if record.settled and record.traffic_confirmed is not False and not unsettled:
        return None
    model = model_of_release(place.store, record.release_id)
    if model not in (None, place.model_id):
        hint = f"roll back {model} instead"
        raise ConfigError(f"release {record.release_id} of {model} is on trial on {place.target}", hint=hint)
    return record


def _newest(trial: CanaryRecord | None, production: Pointer | None) -> str:
    """The release that a rollback without a name leaves; empty when there is none."""
    return trial.release_id if trial is not None else production.release_id if production is not None else ""

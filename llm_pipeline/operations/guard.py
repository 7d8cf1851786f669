"""The watchdog: a canary without a controller loses its traffic. One pass checks every target of a deployment.

A canary whose controller was not heard of, one that waited for a person for too long, and one that a person denied
are rolled back; a rollback that was begun is completed. A router or a production server that has ended is started.
A slot that kept the version before warm is stopped when its rollback window ends. The guard runs on the host of the
target's servers, beside whatever else runs there: it never interrupts a controller that renews its lease.

The clocks of two hosts differ, and either may be set. So a controller's silence is measured by no time that it wrote:
the guard remembers the revisions of the documents that a living controller changes, and for how long they have not
changed, in seconds since its host's boot. A person's deadline is measured by the clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from llm_pipeline.base.errors import Transient, Unsupported, as_pipeline_error, is_unexpected
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary import evidence
from llm_pipeline.canary.moving import end_canary
from llm_pipeline.canary.people import runs_of
from llm_pipeline.canary.record import (
    LEASE_SECONDS,
    CanaryJournal,
    CanaryRecord,
    Phase,
    canary_record_name,
    lease_name,
    take_over,
)
from llm_pipeline.canary.router import access_log_of
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.operations.rollback import carry_on
from llm_pipeline.operations.served_place import place_as_it_is, record_heartbeat
from llm_pipeline.operations.upkeep import Done, Send, Start, Stop, keep
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost, LeaseState, lease_of
from llm_pipeline.store.place_state import Heartbeat, Sighting, StepApproval, read_place

log = get_logger(__name__)

_POLL_SECONDS = 0.5


def overdue(
    record: CanaryRecord, approval: StepApproval | None, *, silent_seconds: float, now: float
) -> tuple[bool, str]:
    """Whether an unfinished canary without a controller must be rolled back, and why, or why not.

    Args:
        record: The canary.
        approval: The question about its next step, or about its pause.
        silent_seconds: For how long its controller gave no heartbeat.
        now: Seconds since 1970.
    """
    if record.phase is Phase.ROLLING_BACK:
        return True, "its rollback was begun and nobody continues it"
    if approval is not None and approval.answer == "denied" and record.phase in (Phase.PAUSED, Phase.PASSED):
        return True, f"{approval.by} denied step {approval.percent:g} %"
    if record.phase is Phase.PAUSED and record.pause is not None:
        over = record.pause.over(now)
        return over, f"it was paused ({record.pause.reason}) and nobody answered in time" if over else "it is paused"
    if record.phase is Phase.PASSED and approval is not None and _may_wait(approval, now):
        return False, "its next step waits for a person"
    over = silent_seconds > record.policy.unwatched_seconds
    return over, f"no controller heartbeat for {silent_seconds:.0f} s while it was {record.phase}"


def _may_wait(approval: StepApproval, now: float) -> bool:
    """Whether a canary between two steps may wait for the answer; once there is one, for whoever acts on it."""
    return approval.answer == "waiting" and approval.asked_at is not None and not approval.overdue(now)


def silent_seconds(store: ArtifactStore, record: CanaryRecord, approval: str, now: HostTime) -> float:
    """For how long a canary has not changed, as the guard sees it; the guard's heartbeat remembers what it sees.

    Args:
        store: Where the record is.
        record: Of the canary.
        approval: The answer that it waits for or got, in any words: a new one is a heartbeat.
        now: On this host.
    """
    known = read_place(store, record.target).guard
    found = f"{record.release_id} {_revisions(store, record)} {approval}"
    sighting = known.sighting if known is not None else None
    if sighting is None or sighting.found != found:
        sighting = Sighting(found=found, boot=now.boot, since=now.up_seconds, since_wall=now.wall)
    try:
        record_heartbeat(store, record.target, Heartbeat(at=now.wall, sighting=sighting))
    except Transient as error:
        log.warning("the guard cannot record that it ran", gpu_target=record.target, reason=str(error))
    return now.seconds_since(HostTime(sighting.boot, sighting.since, sighting.since_wall))


def is_driven(store: ArtifactStore, target: str, *, seconds: float) -> bool:
    """Whether somebody renews the target's lease, by watching it for long enough; no clocks are compared."""
    document = store.read_document(lease_name(target))
    if document is None or _given_up(lease_of(document, lease_name(target))):
        return False
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(_POLL_SECONDS, seconds / 4))
        again = store.read_document(lease_name(target))
        if again is None or again.revision != document.revision:
            return again is not None and not _given_up(lease_of(again, lease_name(target)))
    return False


def _given_up(lease: LeaseState) -> bool:
    return lease.expires_at == 0.0 or lease.holder_gone


def _revisions(store: ArtifactStore, record: CanaryRecord) -> str:
    names = (canary_record_name(record.release_id, record.target), lease_name(record.target))
    documents = [store.read_document(name) for name in names]
    return " ".join(document.revision if document is not None else "-" for document in documents)


GUARD = "guard"
RECENT_SECONDS = 120.0


@dataclass(frozen=True)
class GuardAction:
    """What the guard did, or could not do.

    Attributes:
        gpu_target: The target's name.
        release_id: The release that it was about.
        what: A canary or production was rolled back, a router or a server that had ended was started, production got
            the traffic that was left on the version before, a slot of that was stopped, or it failed.
        detail: Why, in one sentence.
    """

    gpu_target: str
    release_id: str
    what: Literal["rolled back", "started", "settled", "stopped previous", "failed"]
    detail: str


def failed(target: str, error: Exception) -> GuardAction:
    """An error as an action; the traceback of an unexpected one is logged."""
    if is_unexpected(error):
        log.error("the guard failed", gpu_target=target, exc_info=error)
    return GuardAction(target, "-", "failed", str(as_pipeline_error(error)))


@dataclass(frozen=True)
class Guard:
    """The guard of one place, whichever model serves there.

    Attributes:
        watch_seconds: A lease that nobody renews for so long is nobody's.
    """

    place: ServedPlace
    watch_seconds: float = LEASE_SECONDS

    def guard(self, now: HostTime) -> list[GuardAction]:
        """Guard the target's canary, then what serves and is kept warm there; failures are reported."""
        acts = (self.guard_canary, self._revive, self._keep_log, self._carry_on, self._keep)
        actions = [action for act in acts for action in self._attempt(act, now)]
        return list(dict.fromkeys(actions))  # a document that none of them can read is told once

    def _attempt(self, act: Callable[[HostTime], list[GuardAction]], now: HostTime) -> list[GuardAction]:
        try:
            return act(now)
        except Exception as error:  # noqa: BLE001 - what else there is to be looked after is, all the same
            return [failed(self.place.target, error)]

    def guard_canary(self, now: HostTime) -> list[GuardAction]:
        """Roll the target's canary back if it has no controller and may not wait any longer.

        Raises:
            PipelineError: It could not be rolled back; the next pass tries again.
        """
        release_id = read_place(self.place.store, self.place.target).on_trial
        record = CanaryJournal(self.place.store, release_id, self.place.target).load() if release_id else None
        if record is None or record.settled:
            if self.place.router is not None or not release_id:
                record_heartbeat(self.place.store, self.place.target, Heartbeat(at=now.wall))
            return []
        if self.place.router is None and record.intended is not None:
            return []  # its router is on another host, and nobody may rely on this guard
        approval = self._approval(record)
        said = f"{approval.answer} {approval.answered_at}" if approval is not None else ""
        silent = silent_seconds(self.place.store, record, said, now)
        must, why = self._must_end(record, approval, silent, now)
        if not must or is_driven(self.place.store, self.place.target, seconds=self.watch_seconds):
            return []
        return self._end(record, why)

    def _end(self, record: CanaryRecord, why: str) -> list[GuardAction]:
        """Take the lease, look again and roll back."""
        journal = CanaryJournal(self.place.store, record.release_id, self.place.target)
        try:
            take_over(self.place.store, self.place.target)
            with Lease(self.place.store, lease_name(self.place.target), seconds=LEASE_SECONDS) as held:
                if journal.load() != record:
                    return []  # somebody adopted it at this very moment
                log.warning("rolling back an unwatched canary", release=record.release_id, why=why)
                reason = evidence.unwatched(why, record.share_percent)
                end_canary(journal, self.place, lease=held, by=GUARD, reason=reason)
        except (Conflict, LeaseHeld, LeaseLost):
            return []
        return [GuardAction(self.place.target, record.release_id, "rolled back", why)]

    def _must_end(
        self, record: CanaryRecord, approval: StepApproval | None, silent: float, now: HostTime
    ) -> tuple[bool, str]:
        must, why = overdue(record, approval, silent_seconds=silent, now=now.wall)
        if must or record.share_percent == 0:
            return must, why
        if not self.place.slots.alive(record.candidate):
            return True, f"the candidate's server ended while it was {record.phase}"
        if self._fails_in_a_row(record, now.wall):
            return True, f"the candidate fails request after request while it is {record.phase}"
        return must, why

    def _fails_in_a_row(self, record: CanaryRecord, now: float) -> bool:
        """Whether the candidate's last requests all failed; False for a router without a log of requests."""
        if self.place.router is None:
            return False
        try:
            recent = access_log_of(self.place.router).recent(max(record.step_began_at, now - RECENT_SECONDS))
        except Unsupported:
            return False
        mine = sorted((one for one in recent if one.arm == record.candidate), key=lambda one: one.started_at)
        last = mine[-record.policy.consecutive_failures :]
        return len(last) == record.policy.consecutive_failures and all(one.fault for one in last)

    def _approval(self, record: CanaryRecord) -> StepApproval | None:
        """The question that the canary waits for; by its pause, or else the next one that was asked or answered."""
        known = read_place(self.place.store, self.place.target).approvals
        mine = [one for one in known if one.release_id == record.release_id and one.run in runs_of(record)]
        if record.pause is not None:
            return next((one for one in mine if one.percent == record.pause.percent), None)
        ahead = [one for one in mine if one.question == "begin" and one.percent > record.passed_percent]
        return min(ahead, key=lambda one: one.percent, default=None)

    def _revive(self, _: HostTime) -> list[GuardAction]:
        """The router, if it has ended."""
        done = self.place.router.revive() if self.place.router is not None else None
        return [GuardAction(self.place.target, "-", "started", done)] if done else []

    def _keep_log(self, _: HostTime) -> list[GuardAction]:
        """Rotate the router's log: between canaries nothing else reads it, and it keeps growing."""
        if self.place.router is not None:
            with contextlib.suppress(Unsupported):
                access_log_of(self.place.router).keep()
        return []

    def _as_its_holder(self) -> ServedPlace:
        return replace(self.place, model_id=read_place(self.place.store, self.place.target).model_id)

    def _carry_on(self, _: HostTime) -> list[GuardAction]:
        """Complete a rollback whose process has ended."""
        done = carry_on(self._as_its_holder())
        if done is None:
            return []
        detail = f"{done.by} requested it, and it had not been carried out: {done.to} serves"
        return [GuardAction(self.place.target, done.left, "rolled back", detail)]

    def _keep(self, now: HostTime) -> list[GuardAction]:
        """What was not on trial: what has ended, what was not settled, and what need not stay warm any more."""
        done = keep(self._as_its_holder(), datetime.fromtimestamp(now.wall, UTC))
        return [action for one in done if (action := self._told(one)) is not None]

    def _told(self, done: Done) -> GuardAction | None:
        target = self.place.target
        if done.error is not None:
            return failed(target, done.error)
        match done.action:
            case Start(pointer):
                return GuardAction(target, pointer.release_id, "started", f"its server in {pointer.slot} had ended")
            case Send(settles=True):
                release_id = read_place(self.place.store, target).on_trial
                return GuardAction(target, release_id, "settled", "it is in production and has all traffic now")
            case Send():
                return None
            case Stop(pointer):
                detail = f"its rollback window is over; slot {pointer.slot} is free"
                return GuardAction(target, pointer.release_id, "stopped previous", detail)


def guard_once(store: ArtifactStore, deployment: Deployment) -> list[GuardAction]:
    """One pass over the targets of a deployment. What fails at one target does not keep the others from being guarded.

    Args:
        store: The deployment's.
        deployment: Its places are guarded, whose servers must be on this host.
    """
    now, actions = HostTime.now(), list[GuardAction]()
    for target in deployment.places:
        try:
            guard = Guard(place_as_it_is(store, deployment, "", target))
        except Exception as error:  # noqa: BLE001 - the other targets are guarded
            actions.append(failed(target, error))
        else:
            actions += guard.guard(now)
    return actions

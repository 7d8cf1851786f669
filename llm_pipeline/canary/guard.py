"""The dead-man switch: no canary keeps traffic that nobody watches. One pass looks at every target of a deployment.

A canary whose controller was not heard of, one that waited for a person for too long, and one that a person denied
are rolled back. A slot that kept the version before warm is stopped when its rollback window ends. The guard runs on
the host of the target's servers, beside whatever else runs there: it takes the target's lease only where nobody has
it, so that it never interrupts a controller, and judges the canary again once it has it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from llm_pipeline.canary import findings
from llm_pipeline.canary.approvals import StepApproval, approval_name, read_approval, runs_of
from llm_pipeline.canary.guard_sign import leave_sign
from llm_pipeline.canary.moving import Patience
from llm_pipeline.canary.open_router import access_log_of, router_as_it_is
from llm_pipeline.canary.record import CanaryJournal, CanaryRecord, Phase, current_canary, lease_name, take_over
from llm_pipeline.canary.retirement import retire_previous
from llm_pipeline.canary.rollback import LEASE_SECONDS, end_canary
from llm_pipeline.canary.router import TrafficRouter
from llm_pipeline.canary.slots import SlotControl, slot_ports, slots_of
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.errors import Unsupported, as_pipeline_error, is_unexpected
from llm_pipeline.logging import get_logger
from llm_pipeline.store.artifact_store import ArtifactStore
from llm_pipeline.store.documents import understood
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseState, lease_of
from llm_pipeline.store.references import PlacedPointers, readable_pointers

log = get_logger(__name__)

GUARD = "guard"
FARTHEST_EXPIRY_SECONDS = 10 * LEASE_SECONDS
"""A lease that ends later than this was written before the clock jumped backwards."""

RECENT_SECONDS = 120.0


@dataclass(frozen=True)
class GuardAction:
    """What the guard did, or could not do.

    Attributes:
        gpu_target: The target's name.
        release_id: The release that it was about.
        what: A canary was rolled back, a slot of before was stopped, a pause's clock was set right, or it failed.
        detail: Why, in one sentence.
    """

    gpu_target: str
    release_id: str
    what: Literal["rolled back", "stopped previous", "pause restarted", "failed"]
    detail: str


def guard_once(store: ArtifactStore, deployment: Deployment, now: float | None = None) -> list[GuardAction]:
    """One pass over the targets of a deployment. What fails at one target does not keep the others from being guarded.

    Args:
        store: The deployment's.
        deployment: Its places are guarded, whose servers must be on this host.
        now: Seconds since 1970; None for the time it is.
    """
    now = time.time() if now is None else now
    actions: list[GuardAction] = []
    models: list[PlacedPointers] = []
    try:
        models, damaged = readable_pointers(store)
        actions += [_failed(PurePosixPath(one.name).stem, "-", one.error) for one in damaged]
    except Exception as error:  # noqa: BLE001 - canaries are guarded without them
        actions.append(_failed("-", "-", error))
    for target, place in deployment.places.items():
        state_root = Path(deployment.state_root)
        try:
            site = GuardedSite(
                store=store,
                target=target,
                router=router_as_it_is(place.router, slot_ports(place), state_root / target / "router"),
                slots=slots_of(store, deployment, target),
                patience=Patience.with_router(place.router),
            )
        except Exception as error:  # noqa: BLE001 - the other targets are guarded
            actions.append(_failed(target, "-", error))
        else:
            actions += site.guard(now, [placed.model_id for placed in models if placed.target == target])
    return actions


def _failed(target: str, about: str, error: Exception) -> GuardAction:
    """What went wrong, as an action; a traceback is logged if nobody expected it."""
    if is_unexpected(error):
        log.error("the guard failed", gpu_target=target, exc_info=error)
    return GuardAction(target, about, "failed", str(as_pipeline_error(error)))


def overdue(
    record: CanaryRecord, lease: LeaseState | None, approval: StepApproval | None, now: float
) -> tuple[bool, str]:
    """Whether an unfinished canary must be rolled back, and why, or why not.

    Args:
        record: The canary.
        lease: Of its target; None when nobody ever had it.
        approval: The question about its next step, or about its pause.
        now: Seconds since 1970.
    """
    if _watched(lease, now):
        return False, "a controller drives it"
    if approval is not None and approval.answer == "denied" and record.phase in (Phase.PAUSED, Phase.PASSED):
        return True, f"{approval.by} denied step {approval.percent:g} %"
    if record.phase is Phase.PAUSED and record.pause is not None:
        over = record.pause.over(now)
        return over, f"it was paused ({record.pause.reason}) and nobody answered in time" if over else "it is paused"
    if record.phase is Phase.PASSED and approval is not None and _may_wait(record, approval, now):
        return False, "its next step waits for a person"
    return _silent(record, lease, now)


def _may_wait(record: CanaryRecord, approval: StepApproval, now: float) -> bool:
    """Whether a canary between two steps may wait for the answer, or for whoever acts on it."""
    limit = approval.deadline_seconds if approval.answer == "waiting" else record.rules.unwatched_seconds
    return now - (approval.answered_at or approval.asked_at or 0.0) <= limit


def _silent(record: CanaryRecord, lease: LeaseState | None, now: float) -> tuple[bool, str]:
    silent = now - max(record.heard_at, lease.expires_at if lease else 0.0)
    if silent < -FARTHEST_EXPIRY_SECONDS:
        return True, "nobody drives it, and the clock was set back"
    over = silent > record.rules.unwatched_seconds
    return over, f"no controller was heard of for {max(0.0, silent):.0f} s while it was {record.phase}"


@dataclass(frozen=True)
class GuardedSite:
    """One target as the guard has it.

    Attributes:
        router: None where none ever ran on this host.
    """

    store: ArtifactStore
    target: str
    router: TrafficRouter | None
    slots: SlotControl
    patience: Patience

    def guard(self, now: float, models: Sequence[str]) -> list[GuardAction]:
        """Guard the target's canary, then what is kept warm of each model there; what fails is told."""
        actions: list[GuardAction] = []
        release_id = None
        try:
            release_id = current_canary(self.store, self.target)
            if self.router is not None or release_id is None:
                leave_sign(self.store, self.target)  # not where there is a canary that it could do nothing about
            actions += self.guard_canary(now)
        except Exception as error:  # noqa: BLE001 - what is kept warm is looked after all the same
            actions.append(_failed(self.target, release_id or "-", error))
        for model_id in models:
            try:
                actions += self._retire(model_id, now)
            except Exception as error:  # noqa: BLE001 - the other models are looked after
                actions.append(_failed(self.target, model_id, error))
        return actions

    def _retire(self, model_id: str, now: float) -> list[GuardAction]:
        stopped = retire_previous(
            self.store,
            model_id,
            self.target,
            router=self.router,
            slots=self.slots,
            patience=self.patience,
            now=now,
        )
        if stopped is None:
            return []
        detail = f"its rollback window is over; slot {stopped.slot} is free"
        return [GuardAction(self.target, stopped.release_id, "stopped previous", detail)]

    def guard_canary(self, now: float) -> list[GuardAction]:
        """Roll the target's canary back, if nobody watches it and it may not wait any longer.

        Raises:
            PipelineError: It could not be rolled back; the next pass tries again.
        """
        release_id = current_canary(self.store, self.target)
        record = CanaryJournal(self.store, release_id, self.target).load() if release_id else None
        if release_id is None or record is None or record.settled:
            return []
        lease = _read_lease(self.store, self.target)
        must, why = self._must_end(record, lease, now)
        if not must:
            return self._restart_pause(record, now)
        if self.router is None and record.intended is not None:
            detail = f"{why}, but the target's router is not on this host"
            return [GuardAction(self.target, release_id, "failed", detail)]
        _end_frozen_owner(lease)
        return self._end(release_id, now)

    def _end(self, release_id: str, now: float) -> list[GuardAction]:
        """Take the lease, look again, and roll back."""
        journal = CanaryJournal(self.store, release_id, self.target)
        lease = _read_lease(self.store, self.target)
        if lease is not None and lease.expires_at > time.time() + FARTHEST_EXPIRY_SECONDS:
            take_over(self.store, self.target)
        try:
            with Lease(self.store, lease_name(self.target), seconds=LEASE_SECONDS) as held:
                record = journal.load()
                if record is None or record.settled:
                    return []
                must, why = self._must_end(record, None, now)
                if not must:
                    return []
                log.warning("rolling an unwatched canary back", release=release_id, why=why)
                reason = findings.unwatched(why, record.share_percent)
                end_canary(journal, self.router, self.slots, self.patience, lease=held, by=GUARD, reason=reason)
                return [GuardAction(self.target, release_id, "rolled back", why)]
        except LeaseHeld:
            return []  # somebody adopted it at this very moment

    def _must_end(self, record: CanaryRecord, lease: LeaseState | None, now: float) -> tuple[bool, str]:
        must, why = overdue(record, lease, self._approval(record), now)
        if must or _watched(lease, now) or record.phase is not Phase.PAUSED or record.share_percent == 0:
            return must, why
        if not self.slots.alive(record.candidate):
            return True, "the candidate's server ended while it waited for a person"
        if self._fails_in_a_row(record, now):
            return True, "the candidate fails request after request while it waits for a person"
        return must, why

    def _fails_in_a_row(self, record: CanaryRecord, now: float) -> bool:
        """The immediate guard of a canary that nobody looks at; a router that keeps no log has none."""
        if self.router is None:
            return False
        try:
            recent = access_log_of(self.router).recent(max(record.step_began_at, now - RECENT_SECONDS))
        except Unsupported:
            return False
        mine = sorted((one for one in recent if one.arm == record.candidate), key=lambda one: one.started_at)
        last = mine[-record.rules.consecutive_failures :]
        return len(last) == record.rules.consecutive_failures and all(one.fault for one in last)

    def _approval(self, record: CanaryRecord) -> StepApproval | None:
        """The question that the canary waits for; by its pause, or else the next one that was asked or answered."""
        if record.pause is not None:
            return self._question(record, record.pause.percent)
        prefix = approval_name(record.release_id, self.target, 0.0).rpartition("/")[0]
        for name in self.store.list_documents(prefix):
            document = self.store.read_document(name)
            found = understood(StepApproval, document.value, name) if document else None
            if found is not None and name == approval_name(record.release_id, self.target, found.percent):
                mine = found.run in runs_of(record) and found.question == "begin"
                if mine and found.percent > record.passed_percent:
                    return found
        return None

    def _question(self, record: CanaryRecord, percent: float) -> StepApproval | None:
        found = read_approval(self.store, record.release_id, self.target, percent)
        return found if found is not None and found.run in runs_of(record) else None

    def _restart_pause(self, record: CanaryRecord, now: float) -> list[GuardAction]:
        """A pause that began in the future began before the clock was set back: its deadline is counted from now."""
        if record.phase is not Phase.PAUSED or record.pause is None or record.pause.since <= now + RECENT_SECONDS:
            return []
        journal = CanaryJournal(self.store, record.release_id, self.target)
        try:
            with Lease(self.store, lease_name(self.target), seconds=LEASE_SECONDS):
                again = journal.load()
                if again is None or again.pause != record.pause:
                    return []
                pause = record.pause.model_copy(update={"since": now})
                journal.save(again.model_copy(update={"pause": pause}))
        except LeaseHeld:
            return []
        return [GuardAction(self.target, record.release_id, "pause restarted", "the clock was set back")]


def _watched(lease: LeaseState | None, now: float) -> bool:
    """Whether somebody holds the lease, and renews it by the clock as it is."""
    return lease is not None and now < lease.expires_at <= now + FARTHEST_EXPIRY_SECONDS and not lease.free


def _read_lease(store: ArtifactStore, target: str) -> LeaseState | None:
    name = lease_name(target)
    document = store.read_document(name)
    return lease_of(document, name) if document else None


def _end_frozen_owner(lease: LeaseState | None) -> None:
    """Kill an owner of this host that is stopped: it may hold the lock of the routes, or of the store, for ever.

    It has lost its lease and would be fenced when it wakes up.
    """
    if lease is None or lease.expires_at == 0.0 or not lease.frozen_here:
        return
    log.warning("the canary's frozen controller is ended", pid=lease.pid)
    os.kill(lease.pid, signal.SIGKILL)

"""The watchdog: a canary without a controller loses its traffic. One pass checks every target of a deployment.

A canary whose controller was not heard of, one that waited for a person for too long, and one that a person denied
are rolled back; a rollback that was begun is completed. A router or a production server that has ended is started.
A slot that kept the version before warm is stopped when its rollback window ends. The guard runs on the host of the
target's servers, beside whatever else runs there: it never interrupts a controller that renews its lease.

A controller is silent since it, or a person who answered its question, wrote last. The clocks of two hosts differ by
minutes at most, which is less than a policy's `unwatched_seconds`; and no clocks are compared to see whether somebody
renews the lease: that is watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from llm_pipeline.base.errors import as_pipeline_error, is_unexpected
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.canary.moving import end_canary
from llm_pipeline.canary.people import runs_of
from llm_pipeline.canary.record import LEASE_SECONDS, CanaryJournal, CanaryRecord, Phase, lease_name, stated, take_over
from llm_pipeline.canary.router import StartedRouter
from llm_pipeline.canary.slots import ServedPlace
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.operations.rollback import carry_on
from llm_pipeline.operations.served_place import place_as_it_is
from llm_pipeline.operations.upkeep import Send, Start, Stop, keep
from llm_pipeline.store.artifact_store import ArtifactStore, Conflict
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost, lease_of
from llm_pipeline.store.place_state import StepApproval, edit_place, read_place

log = get_logger(__name__)

_POLL_SECONDS = 0.5


def overdue(record: CanaryRecord, approval: StepApproval | None, now: float) -> tuple[bool, str]:
    """Whether an unfinished canary without a controller must be rolled back, and why, or why not.

    Args:
        record: The canary.
        approval: The question about its next step, or about its pause.
        now: Seconds since 1970.
    """
    if record.phase is Phase.ROLLING_BACK:
        return True, "its rollback was begun and nobody continues it"
    if approval is not None and approval.answer == "denied" and record.phase in (Phase.PAUSED, Phase.PASSED):
        return True, f"{approval.by} denied step {approval.percent:g} %"
    if record.phase is Phase.PAUSED and record.pause is not None:
        over = record.pause.over(now)
        return over, f"it was paused ({record.pause.reason}) and nobody answered in time" if over else "it is paused"
    waits = approval is not None and approval.answer == "waiting" and approval.asked_at is not None
    if record.phase is Phase.PASSED and approval is not None and waits and not approval.overdue(now):
        return False, "its next step waits for a person"
    heard = max(record.written_at, (approval.answered_at or 0.0) if approval is not None else 0.0)
    silent = max(0.0, now - heard)
    over = silent > record.policy.unwatched_seconds
    return over, f"no controller heartbeat for {silent:.0f} s while it was {record.phase}"


def is_driven(store: ArtifactStore, target: str, *, seconds: float) -> bool:
    """Whether somebody renews the target's lease, by watching it for long enough; no clocks are compared."""
    deadline, first = time.monotonic() + seconds, None
    while True:
        document = store.read_document(lease_name(target))
        if document is None:
            return False
        lease = lease_of(document, lease_name(target))
        if lease.expires_at == 0.0 or lease.holder_gone:
            return False
        first = first or document.revision
        if document.revision != first or time.monotonic() >= deadline:
            return document.revision != first
        time.sleep(min(_POLL_SECONDS, seconds / 4))


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

    def guard(self, now: float) -> list[GuardAction]:
        """Guard the target's canary, then what serves and is kept warm there; failures are reported.

        Args:
            now: Seconds since 1970.
        """
        acts: list[Callable[[float], list[GuardAction]]] = [self.guard_canary, self._router, self._carry_on, self._keep]
        actions = []
        for act in acts:
            try:
                actions += act(now)
            except Exception as error:  # noqa: BLE001 - what else there is to be looked after is, all the same
                actions.append(failed(self.place.target, error))
        return list(dict.fromkeys(actions))  # a document that none of them can read is told once

    def guard_canary(self, now: float) -> list[GuardAction]:
        """Roll the target's canary back if it has no controller and may not wait any longer.

        Raises:
            PipelineError: It could not be rolled back; the next pass tries again.
        """
        store, target = self.place.store, self.place.target
        state = read_place(store, target)
        journal = CanaryJournal(store, state.on_trial, target)
        record = journal.load() if state.on_trial else None
        unsettled = record is not None and not record.settled
        routed = record.intended is not None if record is not None and unsettled else state.on_trial != ""
        if self.place.router is None and routed:
            return []  # its router is on another host: nobody may rely on this guard
        edit_place(store, target, lambda state: state.model_copy(update={"guarded_at": now}))
        if record is None or not unsettled:
            return []
        mine = [one for one in state.approvals if one.release_id == record.release_id and one.run in runs_of(record)]
        if record.pause is not None:
            asked = next((one for one in mine if one.percent == record.pause.percent), None)
        else:
            ahead = [one for one in mine if one.question == "begin" and one.percent > record.passed_percent]
            asked = min(ahead, key=lambda one: one.percent, default=None)
        must, why = overdue(record, asked, now)
        if not must and record.share_percent and not self.place.slots.alive(record.candidate):
            must, why = True, f"the candidate's server ended while it was {record.phase}"
        if not must or is_driven(store, target, seconds=self.watch_seconds):
            return []
        try:
            take_over(store, target)
            with Lease(store, lease_name(target), seconds=LEASE_SECONDS) as held:
                if journal.load() != record:
                    return []  # somebody adopted it at this very moment
                log.warning("rolling back an unwatched canary", release=record.release_id, why=why)
                words = f"rolled back by the guard at {record.share_percent:g} %: {why}"
                reason = stated(Verdict.INCONCLUSIVE, words, "controller")
                end_canary(journal, self.place, lease=held, by="guard", reason=reason)
        except (Conflict, LeaseHeld, LeaseLost):
            return []
        return [GuardAction(target, record.release_id, "rolled back", why)]

    def _router(self, _: float) -> list[GuardAction]:
        """Start the router if it has ended; rotate its log, which grows between canaries while nothing reads it."""
        router = self.place.router
        done = router.revive() if router is not None else None
        if isinstance(router, StartedRouter):
            router.access_log().keep()
        return [GuardAction(self.place.target, "-", "started", done)] if done else []

    def _as_its_holder(self) -> ServedPlace:
        return replace(self.place, model_id=read_place(self.place.store, self.place.target).model_id)

    def _carry_on(self, _: float) -> list[GuardAction]:
        """Complete a rollback whose process has ended."""
        done = carry_on(self._as_its_holder())
        if done is None:
            return []
        detail = f"{done.by} requested it, and it had not been carried out: {done.to} serves"
        return [GuardAction(self.place.target, done.left, "rolled back", detail)]

    def _keep(self, now: float) -> list[GuardAction]:
        """What was not on trial: what has ended, what was not settled, and what need not stay warm any more."""
        target, actions = self.place.target, []
        for action, error in keep(self._as_its_holder(), datetime.fromtimestamp(now, UTC)):
            if error is not None:
                actions.append(failed(target, error))
                continue
            match action:
                case Start(pointer):
                    detail = f"its server in {pointer.slot} had ended"
                    actions.append(GuardAction(target, pointer.release_id, "started", detail))
                case Send(settles=True):
                    release_id = read_place(self.place.store, target).on_trial
                    detail = "it is in production and has all traffic now"
                    actions.append(GuardAction(target, release_id, "settled", detail))
                case Stop(pointer):
                    detail = f"its rollback window is over; slot {pointer.slot} is free"
                    actions.append(GuardAction(target, pointer.release_id, "stopped previous", detail))
        return actions


def guard_once(store: ArtifactStore, deployment: Deployment) -> list[GuardAction]:
    """One pass over the targets of a deployment. What fails at one target does not keep the others from being guarded.

    Args:
        store: The deployment's.
        deployment: Its places are guarded, whose servers must be on this host.
    """
    now, actions = time.time(), list[GuardAction]()
    for target in deployment.places:
        try:
            guard = Guard(place_as_it_is(store, deployment, "", target))
        except Exception as error:  # noqa: BLE001 - the other targets are guarded
            actions.append(failed(target, error))
        else:
            actions += guard.guard(now)
    return actions

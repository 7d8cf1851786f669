"""What a controller does while the store accepts no writes: users first, and what was done is recorded afterwards.

A candidate that has traffic keeps it for as long as it is watched and sound, and gets no more. One that fails loses
its traffic at the router, before anybody can write that down. Without traffic on a candidate there is nothing to
guard: the stage fails, and its next attempt goes on.
"""

from __future__ import annotations

import time

from llm_pipeline.base.errors import Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement
from llm_pipeline.canary import analysis, evidence
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.record import CanaryRecord, Phase
from llm_pipeline.canary.rollback import UNRECORDED, move_unrecorded
from llm_pipeline.canary.router import RouterConflict, RouterUnavailable
from llm_pipeline.canary.stable_server import NoWayBack
from llm_pipeline.canary.transitions import Transitions, tests_of
from llm_pipeline.store.lease import LeaseHeld, LeaseLost

log = get_logger(__name__)

NOT_THE_STORE = (LeaseHeld, LeaseLost, NoWayBack, RouterConflict, RouterUnavailable)
"""Errors that may pass, too, and say nothing about the store."""


class Holding(Transitions):
    """Between a write that the store refused and the same one tried again."""

    _held: CanaryRecord | None = None

    def _hold(self, record: CanaryRecord, refused: Transient, *, watched: bool) -> CanaryRecord:
        """The record as it was, for what was refused to be tried again.

        Args:
            record: As it was before.
            refused: What the store said.
            watched: What is tried again looks at the candidate itself.

        Raises:
            Transient: As `refused`: the candidate has no traffic, or none any more.
        """
        state = self._router.read()[0]
        ours = state.candidate == record.candidate and not state.owner.startswith(UNRECORDED)
        if not ours or not state.weights.get(record.candidate):
            raise refused
        log.warning("the store accepts no writes: still watching the candidate", reason=str(refused))
        if watched:
            return record
        time.sleep(self._policy.look_seconds)
        fails = self._fails_meanwhile(record)
        if fails is not None or record.phase is Phase.ROLLING_BACK:
            log.warning("rolling back, unrecorded", reason=fails.summary if fails else "its rollback was begun")
            if move_unrecorded(self._router, self._slots, record.release_id, self._plan.patience, record):
                raise refused
        return record

    def _fails_meanwhile(self, record: CanaryRecord) -> Judgement | None:
        """The immediate guard of a candidate that has traffic outside of a look; what it read is kept in memory."""
        if not self._slots.alive(record.candidate):
            return findings.server_ended(f"{record.share_percent:g} %")
        held = self._held if self._held is not None and self._held.phase is record.phase else record
        try:
            seen, held = self._traffic.look(held, tests_of(held).thresholds)
        except Transient as error:
            log.warning("the source of metrics is down", reason=str(error))
            return None
        self._held = held.model_copy(update={"analysis": analysis.observe(tests_of(held), seen)})
        step = tests_of(self._held).step
        if step is None or evidence.stable_is_bad(step):
            return None
        fact = evidence.guard(step, self._policy)
        return findings.fails_unrecorded(f"{record.share_percent:g} %", fact) if fact is not None else None

    def _save_later(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        """Save what the router has confirmed; if the store accepts no writes, the next accepted record has it."""
        try:
            return self._save(record, **changes)
        except Transient as error:
            log.warning("the store accepts no writes: the router's changes are recorded later", reason=str(error))
            return record.model_copy(update=changes)

"""The start of a canary: its server, the warm-up, and the latency limits."""

from __future__ import annotations

import time

from llm_pipeline.base.errors import Fenced, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.canary import analysis
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.controller_core import ControllerCore
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.moving import stand_down, traffic_to, wait_converged, wait_usable
from llm_pipeline.canary.open_router import name_release
from llm_pipeline.canary.record import CanaryRecord, Phase
from llm_pipeline.canary.router import RouteState, other_slot
from llm_pipeline.canary.slots import WarmUp

log = get_logger(__name__)


class Starting(ControllerCore):
    """From PENDING to the first step."""

    def _start_candidate(self, record: CanaryRecord) -> CanaryRecord:
        if self._plan.production is not None:
            self._slots.ensure(self._plan.production.slot, self._plan.production.repository, self._token)
            if (drift := self._drift(record, self._router.read()[0])) is not None:
                return self._drifted(record, drift)  # the idle slot may be in use: start and stop nothing
        self._clock.start()
        record = self._save(record, candidate_started=True)
        if record.stable is not None:
            stand_down(self._router, self._plan.patience, owner=self._owner, epoch=self._epoch)
        self._slots.replace(record.candidate, record.repository, self._token)
        name_release(self._router, record.candidate, record.release_id)
        log.info("candidate started", slot=record.candidate, repository=str(record.repository))
        record = record.with_event(EventKind.STARTED, f"candidate started in {record.candidate}", by=self._owner)
        return self._save(record.marked("candidate started", share=0.0), phase=Phase.WARM)

    def _keep_stable_behind(self, record: CanaryRecord) -> None:
        """Restart stable while the candidate stands by; without a standby, users would be refused meanwhile."""
        if record.stood_in is not None:
            self._keep_stable()

    def _keep_stable(self) -> None:
        """Keep stable's server running: until the first step, which may be hours away, it serves all users."""
        production = self._plan.production
        if production is None or not self._slots.ended(production.slot):
            return
        log.warning("stable's server had ended: restarting it", slot=production.slot)
        try:
            self._slots.ensure(production.slot, production.repository, self._token)
        except Fenced:
            raise
        except PipelineError as error:
            log.error("stable's server does not start", slot=production.slot, reason=str(error))  # noqa: TRY400 - the reason is logged

    def _warm_up(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        self._keep_stable_behind(record)
        warm = self._slots.warm_up(record.candidate, record.repository)
        log.info("candidate warmed up", prompts=warm.prompts, answered=warm.answered, seconds=warm.seconds)
        if warm.answered == 0:
            return self._condemn(record, findings.answers_nothing(warm))
        if not wait_usable(self._router, record.candidate, self._plan.patience.usable):
            return self._condemn(record, findings.not_reached())
        if record.stable is None:
            return self._deploy_first(record, warm)
        record = self._stands_by(record)
        self._keep_stable()
        return self._begin_tests(record, percent)

    def _stands_by(self, record: CanaryRecord) -> CanaryRecord:
        """Make the candidate, which answers by now, the standby: it gets requests that stable fails."""
        state, revision = self._router.read()
        want = self._alone(record)
        if want.standby is None or state.standby == want.standby or not want.same_traffic(state):
            return record
        if record.stood_in is None:
            record = self._save(record, stood_in=0, cursor=self._traffic.end())
        confirmed = wait_converged(self._router, self._router.write(want, revision), self._plan.patience.confirm)
        log.info("the candidate is stable's standby", slot=record.candidate, confirmed=confirmed)
        return record

    def _alone(self, record: CanaryRecord) -> RouteState:
        """Before the first step: stable has all traffic."""
        stable = record.stable or other_slot(record.candidate)
        return self._state(stable, 1.0, on_trial=False, standby=record.candidate)

    def _deploy_first(self, record: CanaryRecord, warm: WarmUp) -> CanaryRecord:
        """Nothing serves yet, so there is nothing to compare with and no user to protect: all traffic at once."""
        want = self._state(record.candidate, 1.0, on_trial=False)
        record = self._save(record, intended=want)
        if not traffic_to(self._router, want, self._plan.patience):
            return self._condemn(record, findings.not_acknowledged())
        record = record.with_event(
            EventKind.PROMOTED, "first deployment: all traffic at once", by=self._owner, percent=100.0
        )
        return self._save(
            record.marked("first deployment", share=1.0),
            phase=Phase.PROMOTED,
            applied=want,
            passed_percent=100.0,
            judgement=findings.deployed_first(warm),
        )

    def _begin_tests(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Wait for enough of stable's requests to say what slow means, then start the tests."""
        try:
            record = self._traffic.stood_in(record)
            baseline = self._traffic.baseline(record, self._policy)
        except Transient as error:
            log.warning("the source of metrics is down", reason=str(error))
            return self._wait_for_traffic(record, 0)
        record, thresholds = baseline.record, baseline.thresholds
        if thresholds is None:
            return self._wait_for_traffic(record, baseline.requests)
        log.info(
            "latency limits are fixed from stable's requests",
            requests=thresholds.requests,
            first_token_milliseconds=thresholds.first_token_milliseconds,
            end_to_end_milliseconds=thresholds.end_to_end_milliseconds,
        )
        for what in thresholds.left_out:
            log.info(f"not compared: {what}")
        return self._begin_step(self._with_stood_in_event(record), percent, analysis.begin(thresholds, self._policy))

    def _with_stood_in_event(self, record: CanaryRecord) -> CanaryRecord:
        """The record, with an event if the candidate answered requests before its first step."""
        if not record.stood_in:
            return record
        words = f"{record.stood_in} requests that stable failed were answered by the candidate"
        log.warning(words, slot=record.candidate)
        return record.with_event(EventKind.STOOD_IN, words, by=self._owner)

    def _wait_for_traffic(self, record: CanaryRecord, seen: int) -> CanaryRecord:
        answered = record.stable is None or self._slots.alive(record.stable)  # otherwise only the candidate runs
        if answered and record.watched_seconds > self._policy.maximum_bake_seconds:
            record = self._with_stood_in_event(record)
            can_replay = self._plan.can_replay
            return self._condemn(record, findings.too_little_traffic(seen, self._policy, can_replay=can_replay))
        time.sleep(self._policy.look_seconds)
        return self._save(record, watched_seconds=record.watched_seconds + self._clock.look(self._policy.look_seconds))

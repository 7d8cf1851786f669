"""The canary of one release on one target: durable, fenced, level-triggered.

    PENDING -> WARM -> SHIFTING(k) -> BAKING(k) -> PASSED(k) -> ... -> PROMOTED
    any -> ROLLING_BACK -> ROLLED_BACK;  SHIFTING or BAKING -> PAUSED (hold) -> SHIFTING again
    PENDING, WARM, BAKING, PASSED: held while a person's pause stands (see `pause_request`)
    BAKING -> PAUSED (undecided, frozen) or PASSED -> PAUSED (approval) -> as a person answers (see `approvals`)
    PROMOTED or ROLLED_BACK by an earlier run of the release -> PENDING (see `plan`)

Each turn of the loop reads the record, does what its phase asks for, and records the next phase. Intent is
recorded before the router is told, and confirmation after, so a controller killed anywhere is continued by the
next one: same phase, same idempotent write, same tests. A controller that was taken over is fenced by its epoch, at
the router and at the record. A router found in neither the intended nor the applied state was changed by another
process: the canary pauses and overwrites nothing.

Stable's server is started in every phase as soon as it has ended; the watch goes on while it loads.

While the store accepts no writes, nothing is moved: a candidate with traffic keeps its share, and what was found is
recorded, with its reason, and carried out as soon as the store takes it. (`rollback --force` does not wait.) If the
candidate has no traffic there is nothing to watch: the stage fails, and its next attempt continues.
"""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from llm_pipeline.base.errors import ConfigError, Fenced, PipelineError, Transient
from llm_pipeline.base.host_time import HostTime
from llm_pipeline.base.logging import Lines, get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.canary import analysis, evidence
from llm_pipeline.canary import judgements as findings
from llm_pipeline.canary.analysis import AnalysisState, with_look
from llm_pipeline.canary.approvals import Questions
from llm_pipeline.canary.events import EventKind
from llm_pipeline.canary.evidence import Outcome, StepDecision, decide
from llm_pipeline.canary.moving import (
    NoWayBack,
    Site,
    end_canary,
    epoch_above,
    give_back,
    router_epoch,
    stand_down,
    traffic_to,
    wait_converged,
    wait_usable,
)
from llm_pipeline.canary.open_router import name_release
from llm_pipeline.canary.plan import CanaryPlan, first_attempt, is_over, next_attempt
from llm_pipeline.canary.record import (
    CanaryJournal,
    CanaryRecord,
    Pause,
    PauseReason,
    Phase,
)
from llm_pipeline.canary.router import (
    ALL,
    RouterConflict,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import ChecksAnswers, SlotControl, WarmUp
from llm_pipeline.canary.step_summary import format_step, step_in_numbers
from llm_pipeline.canary.traffic import Traffic
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost
from llm_pipeline.store.place_state import PauseRequest, PlaceState, StepApproval, edit_place, read_place

log = get_logger(__name__)

_PAUSABLE = frozenset({Phase.PENDING, Phase.WARM, Phase.BAKING, Phase.PASSED})
_RUNNING = frozenset({Phase.WARM, Phase.SHIFTING, Phase.BAKING, Phase.PASSED})
"""The candidate's server must run."""

_STARTS_AT_ONCE_SECONDS = 1.0
"""A server that starts within this time is waited for; the watch goes on beside one that takes longer."""

_NOT_THE_STORE = (LeaseHeld, LeaseLost, NoWayBack, RouterConflict, RouterUnavailable)
"""Transient errors that do not come from the store."""

SOURCE_PATIENCE_LOOKS = 30
"""The canary pauses once the source of metrics has been down for this many looks."""

LONGEST_LOOKS = 10.0
"""One look counts for at most this many intervals between looks: a frozen process watched nothing meanwhile."""


class WatchClock:
    """How long a step was watched: this process's monotonic clock, bounded look by look; the record keeps the sum."""

    def __init__(self) -> None:
        self._last: float | None = None

    def start(self) -> None:
        """The first look is timed from now on."""
        self._last = time.monotonic()

    def look(self, look_seconds: float) -> float:
        """Seconds watched since the last look; a process that continues another one's step counts one interval."""
        now, last = time.monotonic(), self._last
        self._last = now
        return look_seconds if last is None else min(now - last, LONGEST_LOOKS * look_seconds)


class CanaryController:
    """Drives a canary's record, one step at a time; holds the target's lease while it does."""

    def __init__(
        self,
        plan: CanaryPlan,
        *,
        journal: CanaryJournal,
        lease: Lease,
        router: TrafficRouter,
        traffic: Traffic,
        slots: SlotControl,
    ) -> None:
        self._plan = plan
        self._policy = plan.policy
        self._journal = journal
        self._lease = lease
        self._router = router
        self._traffic = traffic
        self._questions = Questions(journal.store, plan)
        self._slots = slots
        self._site = Site(router, slots, plan.patience)
        self._owner = f"{plan.release_id}@{socket.gethostname()}.{os.getpid()}"
        self._epoch = lease.epoch
        self._clock = WatchClock()
        self._blind_since: float | None = None
        self._paused: PauseRequest | None = None
        self._starter = ThreadPoolExecutor(max_workers=1)
        self._starting: Future[None] | None = None

    @property
    def _token(self) -> FencingToken:
        """The token that this controller shows to the slots."""
        return FencingToken(self._epoch, self._lease.epoch)

    def run_step(self, percent: float) -> Judgement:
        """Bring the canary to the end of one step, from wherever it stands.

        A canary that an earlier run of the release brought to its end begins anew; one of this run stays judged.

        Returns:
            The step's judgement: GO when it passed; NO_GO when the candidate regressed (and is rolled back);
            INCONCLUSIVE or ANOMALOUS when it was paused.

        Raises:
            Fenced: Another controller took over.
            ConfigError: The step is not the next one of the policy.
        """
        record = self._adopt_or_hold(percent)
        while True:
            self._lease.check()
            passed = record.phase is Phase.PASSED and percent <= record.passed_percent
            done = record.settled or record.phase is Phase.PAUSED or passed
            if done and record.judgement is not None:
                return record.judgement
            record = self._with_router(record)
            try:
                record = self._turn(record, percent)
            except _NOT_THE_STORE:
                raise
            except Transient as error:
                self._hold(record, error)

    def _adopt_or_hold(self, percent: float) -> CanaryRecord:
        while True:
            try:
                return self._adopt(percent)
            except _NOT_THE_STORE:
                raise
            except Transient as error:
                if (found := self._journal.load()) is None or found.settled:
                    raise
                self._hold(found, error)
                self._lease.check()

    def _adopt(self, percent: float) -> CanaryRecord:
        """Load the record, or make it; writing it with our epoch fences whoever wrote it before."""
        self._lease.confirm()
        self._end_older_release()
        record = self._journal.load() or first_attempt(self._plan, self._traffic.end())
        seen = (record.epoch, router_epoch(self._router), self._slots.newest().epoch)
        self._epoch = epoch_above(self._lease.epoch, *seen)
        self._lease.confirm()  # the next holder reads an epoch at least as high, and goes above ours
        if is_over(record, self._plan, lambda: self._router.read()[0]):
            record = self._try_again(record)
        self._check_order(record, percent)
        record = record.model_copy(update={"run": self._plan.run})
        if not record.settled:
            self._claim_routes()
            edit_place(self._journal.store, self._plan.target, self._on_trial)
        return self._resume(record) if record.phase is Phase.PAUSED else self._save(record)

    def _on_trial(self, state: PlaceState) -> PlaceState:
        self._lease.confirm()
        return state.model_copy(update={"on_trial": self._plan.release_id})

    def _claim_routes(self) -> None:
        """Rewrite the current routes with our epoch: an earlier controller can no longer write any."""
        try:
            state, revision = self._router.read()
            if state.epoch < self._epoch:
                claimed = state.model_copy(update={"owner": self._owner, "epoch": self._epoch})
                self._router.write(claimed, revision)
        except RouterUnavailable as error:
            log.warning("the routes cannot be claimed", reason=str(error))

    def _end_older_release(self) -> None:
        """Another release's canary on this target is rolled back first, however its controller ended."""
        store, target = self._journal.store, self._plan.target
        other = read_place(store, target).on_trial
        if not other or other == self._plan.release_id:
            return
        journal = CanaryJournal(store, other, target)
        if (record := journal.load()) is None or record.settled:
            return
        log.warning("rolling back another release", release=other, phase=record.phase.value)
        reason = findings.superseded(self._plan.release_id)
        end_canary(journal, self._site, lease=self._lease, by=self._owner, reason=reason)

    def _try_again(self, record: CanaryRecord) -> CanaryRecord:
        """A fresh attempt, not yet saved; what an earlier run left half rolled back is rolled back first."""
        if record.phase is Phase.ROLLING_BACK:
            record = self._roll_back(record)
        log.info(
            "the canary of an earlier run is over: this run starts a new one",
            earlier=record.phase.value,
            run=self._plan.run,
        )
        return next_attempt(record, self._plan, self._traffic.end())

    def _check_order(self, record: CanaryRecord, percent: float) -> None:
        steps = self._policy.steps_percent
        allowed = [step for step in steps if step <= record.passed_percent]
        allowed += [step for step in steps if step > record.passed_percent][:1]
        if not record.settled and percent not in allowed:
            raise ConfigError(
                f"step {percent:g} % is not the next one",
                where=f"canary of {record.release_id}",
                hint=f"steps: {steps}",
            )

    def _resume(self, record: CanaryRecord) -> CanaryRecord:
        """Continue after a pause whose reason has gone or was answered."""
        pause = record.pause
        if pause is not None and pause.asks:
            return self._act_on_answer(record, pause)
        if pause is not None and pause.over(HostTime.now()):
            return self._condemn(record, findings.nobody_answered(pause.percent, pause.deadline_seconds))
        log.info("continuing after a pause", percent=record.step_percent)
        record = record.with_event(EventKind.RESUMED, "continuing after a pause", by=self._owner)
        if record.analysis is None:
            return self._save(record, phase=Phase.PENDING, pause=None)
        return self._begin_step(record, record.step_percent, tests_of(record))

    def _act_on_answer(self, record: CanaryRecord, pause: Pause) -> CanaryRecord:
        """Do what a person said; without an answer it stays paused until its deadline."""
        approval = self._questions.answer(record, pause)
        match approval.answer:
            case "waiting":
                return self._save(record)
            case "approved" if pause.reason is PauseReason.APPROVAL:
                return self._save(record, phase=Phase.PASSED if record.passed_percent else Phase.PENDING, pause=None)
            case "approved":
                return self._accept(record, approval, pause)
            case "denied" | "timed out":
                return self._refuse(record, approval)

    def _accept(self, record: CanaryRecord, approval: StepApproval, pause: Pause) -> CanaryRecord:
        """A person lets the step pass. Tests that showed a regression restart, or they would show it for ever."""
        tests = tests_of(record)
        requests = tests.step.candidate.requests if tests.step else 0
        if pause.reason is PauseReason.REGRESSED:
            record = record.model_copy(update={"analysis": analysis.begin(tests.thresholds, self._policy)})
        record = record.with_event(EventKind.APPROVED, f"go on after step {pause.percent:g} %", by=approval.by)
        return self._pass(record, findings.accepted(pause.percent, approval.by, requests))

    def _refuse(self, record: CanaryRecord, approval: StepApproval) -> CanaryRecord:
        if approval.answer == "timed out":
            return self._condemn(record, findings.nobody_answered(approval.percent, approval.deadline_seconds))
        words = f"denied: step {approval.percent:g} %"
        record = record.with_event(EventKind.DENIED, words, by=approval.by, verdict=Verdict.NO_GO)
        return self._condemn(record, findings.denied(approval.percent, approval.by))

    def _with_router(self, record: CanaryRecord) -> CanaryRecord:
        """Start the router again if it has ended, in every phase: without it every user is refused."""
        try:
            done = self._router.revive()
        except PipelineError as error:
            log.error("the router has ended and does not start", reason=str(error))  # noqa: TRY400 - nothing to trace
            return record
        if done is None:
            return record
        log.warning(done, percent=record.step_percent)
        return record.with_event(EventKind.REVIVED, done, by=self._owner)

    def _turn(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Do what the phase asks for, unless a person paused it; returns the record as saved."""
        ended = self._candidate_ended(record) if record.phase in _RUNNING else None
        self._keep_stable()
        if ended is not None:
            return self._condemn(record, ended)
        if record.phase in _PAUSABLE:
            record = self._with_pause_request(record)
            if record.pause_request is not None:
                return self._stay(record, record.pause_request)
        match record.phase:
            case Phase.PENDING:
                approved = self._with_approval(record, percent)
                return self._start_candidate(approved) if approved.phase is Phase.PENDING else approved
            case Phase.WARM:
                return self._warm_up(record, percent)
            case Phase.PASSED:
                approved = self._with_approval(record, percent)
                passed = approved.phase is Phase.PASSED
                return self._begin_step(approved, percent, tests_of(record)) if passed else approved
            case Phase.SHIFTING:
                return self._shift(record)
            case Phase.BAKING:
                return self._look(record)
            case Phase.ROLLING_BACK:
                return self._roll_back(record)
            case _:
                raise ConfigError(f"the canary is {record.phase}", where=record.release_id)

    def _with_pause_request(self, record: CanaryRecord) -> CanaryRecord:
        """The record with a person's pause as it stands, and with the events of its beginning and its end."""
        known, found = record.pause_request, self._pause_request()
        holds = found is not None and found.holds(record.began_at)
        wanted = found.seen_by(HostTime.now(), known) if found is not None and holds else None
        if wanted == known:
            return record
        if wanted is None:
            by = found.resumed_by if found is not None else self._owner
            words, kind, label = f"{by} resumed it", EventKind.RESUMED, "resumed"
        else:
            by, words = wanted.by, wanted.words()
            kind, label = EventKind.PAUSED_BY_PERSON, "paused by a person"
        log.warning(words, percent=record.step_percent)
        record = record.with_event(kind, words, by=by).marked(label, share=record.share_percent / 100)
        return self._save(record, pause_request=wanted)

    def _pause_request(self) -> PauseRequest | None:
        """The request as stored; while the store cannot be read, as it was read last: an outage resumes nothing."""
        try:
            self._paused = read_place(self._journal.store, self._plan.target).pause
        except Transient as error:
            log.warning("cannot read whether a person paused or resumed it", reason=str(error))
        return self._paused

    def _stay(self, record: CanaryRecord, paused: PauseRequest) -> CanaryRecord:
        """Keep the split, and go on watching a candidate that has traffic."""
        if paused.over(HostTime.now()):
            return self._condemn(
                record, findings.nobody_resumed(paused.by, record.share_percent, paused.deadline_seconds)
            )
        if record.phase in (Phase.BAKING, Phase.PASSED) and record.analysis is not None:
            return self._look(record)
        time.sleep(self._policy.look_seconds)
        return self._save(record)

    def _with_approval(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """The record, if the step may begin; otherwise it is paused, or rolled back by a denial."""
        if percent not in self._policy.approve_before_percent or record.stable is None:
            return record
        approval = self._questions.ask(record, percent, PauseReason.APPROVAL)
        match approval.answer:
            case "approved":
                return record.with_event(EventKind.APPROVED, f"step {percent:g} % may begin", by=approval.by)
            case "waiting":
                asked = findings.approval_asked(percent, self._questions.command(percent))
                return self._pause(record, asked, PauseReason.APPROVAL, percent)
            case "denied" | "timed out":
                return self._refuse(record, approval)

    def _start_candidate(self, record: CanaryRecord) -> CanaryRecord:
        if self._plan.production is not None:
            self._slots.ensure(self._plan.production.slot, self._plan.production.repository, self._token)
            if (drift := self._drift(record, self._router.read()[0])) is not None:
                return self._pause(record, drift, PauseReason.CHANGED_OUTSIDE)  # start and stop nothing
        self._clock.start()
        record = self._save(record, candidate_started=True)
        if record.stable is not None:
            stand_down(self._router, self._plan.patience, owner=self._owner, epoch=self._epoch)
        self._slots.replace(record.candidate, record.repository, self._token)
        name_release(self._router, record.candidate, record.release_id)
        log.info("candidate started", slot=record.candidate, repository=str(record.repository))
        record = record.with_event(EventKind.STARTED, f"candidate started in {record.candidate}", by=self._owner)
        return self._save(record.marked("candidate started", share=0.0), phase=Phase.WARM)

    def _candidate_ended(self, record: CanaryRecord) -> Judgement | None:
        """The judgement if the candidate's server has ended: its fault, unless stable's has ended as well."""
        if self._slots.alive(record.candidate):
            return None
        production = self._plan.production
        both = production is not None and not self._slots.alive(production.slot)
        return findings.all_ended(record.step_percent) if both else findings.server_ended(record.step_percent)

    def _keep_stable(self) -> None:
        """Start stable's server if it has ended by itself, whatever the phase."""
        production = self._plan.production
        if production is None or self._is_starting() or not self._slots.ended(production.slot):
            return
        log.warning("stable's server had ended: restarting it", slot=production.slot)
        token = self._token
        self._starting = self._starter.submit(self._slots.ensure, production.slot, production.repository, token)
        wait([self._starting], timeout=_STARTS_AT_ONCE_SECONDS)
        self._is_starting()

    def _is_starting(self) -> bool:
        """Whether stable's server is being started now; how that ended is told once.

        Raises:
            Fenced: Somebody else took the slots over.
        """
        if self._starting is None or not self._starting.done():
            return self._starting is not None
        starting, self._starting = self._starting, None
        try:
            starting.result()
        except Fenced:
            raise
        except PipelineError as error:
            log.error("stable's server does not start", reason=str(error))  # noqa: TRY400 - the reason is logged
        return False

    def _warm_up(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        warm = self._slots.warm_up(record.candidate, record.repository)
        log.info("candidate warmed up", prompts=warm.prompts, answered=warm.answered, seconds=warm.seconds)
        if warm.answered == 0:
            return self._condemn(record, findings.answers_nothing(warm))
        if not wait_usable(self._router, record.candidate, self._plan.patience.usable):
            return self._condemn(record, findings.not_reached())
        if record.stable is None:
            return self._deploy_first(record, warm)
        record = self._stands_by(record)
        return self._begin_tests(record, percent)

    def _stands_by(self, record: CanaryRecord) -> CanaryRecord:
        """Make the candidate, which answers by now, the standby: it gets requests that stable fails."""
        state, revision = self._router.read()
        stable = record.stable or other_slot(record.candidate)
        want = self._state(stable, 1.0, on_trial=False, standby=record.candidate)
        if want.standby is None or state.standby == want.standby or not want.same_traffic(state):
            return record
        if record.stood_in is None:
            record = self._save(record, stood_in=0, cursor=self._traffic.end())
        confirmed = wait_converged(self._router, self._router.write(want, revision), self._plan.patience.confirm)
        log.info("the candidate is stable's standby", slot=record.candidate, confirmed=confirmed)
        return record

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
            first_token_milliseconds=thresholds.first("slow first token"),
            end_to_end_milliseconds=thresholds.first("slow end"),
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

    def _begin_step(self, record: CanaryRecord, percent: float, tests: AnalysisState) -> CanaryRecord:
        want = self._state(record.candidate, self._policy.share_at(percent), on_trial=True)
        step = analysis.begin_step(tests, want.weights[record.candidate] / ALL)
        begun = {"step_percent": percent, "step_began_at": 0.0, "watched_seconds": 0.0, "pause": None}
        return self._save(record, phase=Phase.SHIFTING, analysis=step, **begun)

    def _shift(self, record: CanaryRecord) -> CanaryRecord:
        """Record the intent, write the routes, wait until the router confirms them, record that."""
        current, revision = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._pause(record, drift, PauseReason.CHANGED_OUTSIDE)
        want = self._state(record.candidate, self._policy.share_at(record.step_percent), on_trial=True)
        record = self._save(record, intended=want)
        revision = self._router.write(want, revision)
        if not wait_converged(self._router, revision, self._plan.patience.confirm):
            return self._condemn(record, findings.not_acknowledged())
        log.info("traffic shifted", percent=record.step_percent, slot=record.candidate, revision=revision)
        now = time.time()
        resumed = record.applied is not None and record.applied.same_traffic(want) and record.step_began_at > 0
        self._clock.start()
        if not resumed:
            words = f"{record.step_percent:g} % of the traffic to {record.candidate}"
            record = record.with_event(EventKind.SHIFTED, words, by=self._owner)
            record = record.marked(f"{record.step_percent:g} %", share=self._policy.share_at(record.step_percent))
            record = self._traffic.step_begins(record)
        return self._save_later(
            record,
            phase=Phase.BAKING,
            applied=want,
            step_began_at=record.step_began_at if resumed else now,
        )

    def _look(self, record: CanaryRecord) -> CanaryRecord:
        """One look, recorded. If the store refuses it, the next look starts where the last recorded one ended."""
        time.sleep(self._policy.look_seconds)
        current, _ = self._router.read()
        if (drift := self._drift(record, current)) is not None:
            return self._pause(record, drift, PauseReason.CHANGED_OUTSIDE)
        elapsed = self._clock.look(self._policy.look_seconds)
        watched = record.watched_seconds + (0.0 if record.pause_request else elapsed)
        watching = record.model_copy(update={"watched_seconds": watched})
        tests = tests_of(record)
        try:
            seen, seeing = self._traffic.look(watching, tests.thresholds)
        except Transient as error:
            return self._without_source(record, error)
        self._blind_since = None
        tests = analysis.observe(tests, seen, elapsed)
        looks = with_look(record.looks, tests, at=time.time(), percent=record.step_percent)
        record = seeing.model_copy(update={"analysis": tests, "looks": looks})
        decision = self._decide(record)
        if seen.behind and decision.outcome is Outcome.PASS:  # unread lines may say otherwise
            return self._save(record)
        return self._act_on(record, decision)

    def _without_source(self, record: CanaryRecord, error: Transient) -> CanaryRecord:
        """Wait for the source without counting the time as baked, conclude nothing, and pause after a while."""
        log.warning("the source of metrics is down", reason=str(error))
        self._blind_since = self._blind_since or time.monotonic()
        blind = time.monotonic() - self._blind_since
        if (ended := self._candidate_ended(record)) is not None:
            return self._condemn(record, ended)
        if blind <= SOURCE_PATIENCE_LOOKS * self._policy.look_seconds:
            return self._save(record)
        down = findings.source_down(f"{error.message}, for {blind:.0f} s")
        return self._pause(record, down, PauseReason.NO_SOURCE)

    def _decide(self, record: CanaryRecord) -> StepDecision:
        """Decide the step by its data; a final decision is logged with the full table."""
        tests, seconds = tests_of(record), record.watched_seconds
        decision = decide(tests, self._policy, seconds)
        if (ended := self._candidate_ended(record)) is not None:
            decision = StepDecision(outcome=Outcome.REGRESSED, judgement=ended)
        elif (fails := self._fails_beside_stable(record, tests)) is not None:
            decision = StepDecision(outcome=Outcome.REGRESSED, judgement=fails)
        if record.pause_request is not None and decision.outcome in (Outcome.PASS, Outcome.UNDECIDED):
            decision = decision.model_copy(update={"outcome": Outcome.CONTINUE})  # paused by a person, who resumes it
        if decision.outcome is Outcome.CONTINUE or tests.step is None:
            return decision
        arms = self._traffic.step_arms(record)
        summary = f"{decision.judgement.summary}: {step_in_numbers(tests.step, arms)}"
        judgement = decision.judgement.model_copy(update={"summary": summary})
        table = format_step(tests, tests.step, arms, judgement=judgement, policy=self._policy, seconds=seconds)
        log.info(Lines(f"both versions:{table}"))
        return decision.model_copy(update={"judgement": judgement})

    def _fails_beside_stable(self, record: CanaryRecord, tests: AnalysisState) -> Judgement | None:
        """The immediate guard after an incident of stable's: once that answers again, it is no excuse any more."""
        step, stable = tests.step, other_slot(record.candidate)
        if step is None or not evidence.stable_is_bad(step) or (fact := evidence.guard(step, self._policy)) is None:
            return None
        if self._is_starting() or not self._slots.answers(stable):
            return None
        return findings.fails_in_a_row(f"{record.step_percent:g} %", fact)

    def _act_on(self, record: CanaryRecord, decision: StepDecision) -> CanaryRecord:
        judgement, step = decision.judgement, tests_of(record).step
        match decision.outcome:
            case Outcome.CONTINUE:
                return self._save(record, judgement=judgement)
            case Outcome.PASS:
                return self._pass(record, judgement)
            case Outcome.ANOMALOUS:
                candidate_waits = self._router.active_requests(record.candidate)
                stable_waits = self._router.active_requests(other_slot(record.candidate))
                if step is not None and candidate_waits is not None and stable_waits is not None:
                    # requests that hang at the candidate make the split look wrong
                    hangs = findings.does_not_answer(step, candidate_waits=candidate_waits, stable_waits=stable_waits)
                    if hangs is not None:  # whatever on_regression says: users are waiting
                        return self._condemn(record, hangs)
                return self._pause(record, judgement, PauseReason.WRONG_SPLIT)
            case Outcome.REGRESSED:  # a fault that users would notice is rolled back whatever the policy says
                fails = step is None or evidence.guard(step, self._policy) is not None
                if fails or self._policy.on_regression == "roll_back" or not self._slots.alive(record.candidate):
                    return self._condemn(record, judgement)
                return self._pause(record, judgement, PauseReason.REGRESSED)
            case Outcome.UNDECIDED:
                return self._undecided(record, judgement)

    def _undecided(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        step = tests_of(record).step
        if step is not None and evidence.stable_is_bad(step):  # there is no stable to roll back to
            return self._pause(record, judgement, PauseReason.UNDECIDED)
        if self._policy.on_undecided == "roll_back":
            return self._condemn(record, judgement)
        clean = findings.undecided_and_clean(step) if step is not None else None
        if self._policy.on_undecided == "advance" and clean is not None:
            words = f"{judgement.summary}; advancing"
            record = record.with_event(EventKind.VERDICT, words, by=self._owner, verdict=judgement.verdict)
            return self._pass(record, clean)
        if step is not None and step.split.candidate < self._policy.minimum_requests:
            advice = findings.more_traffic(self._policy, can_replay=self._plan.can_replay)
            words = f"{judgement.summary}; too little traffic: approve the step, or {advice}"
            judgement = judgement.model_copy(update={"summary": words})
        return self._pause(record, judgement, PauseReason.UNDECIDED)

    def _pass(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        if isinstance(self._slots, ChecksAnswers):
            differs = self._slots.differs(record.candidate, record.repository)
            if differs is not None:
                return self._condemn(record, findings.another_model(f"{record.step_percent:g} %", differs))
        if record.step_percent < 100.0:  # noqa: PLR2004
            record = record.with_event(EventKind.PASSED, judgement.summary, by=self._owner, verdict=judgement.verdict)
            passed = {"passed_percent": record.step_percent, "pause": None}
            return self._save(record, phase=Phase.PASSED, judgement=judgement, **passed)
        if (drift := self._drift(record, self._router.read()[0])) is not None:
            return self._pause(record, drift, PauseReason.CHANGED_OUTSIDE)
        record = record.marked("promoted", share=record.share_percent / 100)  # until it is settled stable keeps its own
        record = record.with_event(EventKind.PROMOTED, judgement.summary, by=self._owner, verdict=judgement.verdict)
        return self._save(record, phase=Phase.PROMOTED, judgement=judgement, passed_percent=100.0, pause=None)

    def _drift(self, record: CanaryRecord, current: RouteState) -> Judgement | None:
        """Why the router is in a state that no controller wrote; None if it is not.

        Raises:
            Fenced: A newer owner wrote it.
        """
        if current.epoch > self._epoch:
            raise Fenced(f"{current.owner} moved the traffic with epoch {current.epoch}", where=record.release_id)
        known = [state for state in (record.intended, record.applied) if state is not None]
        if record.applied is None:
            known.append(all_to(record.stable or record.candidate, owner=self._owner, epoch=self._epoch))
        return findings.changed_from_outside(current, known)

    def _pause(
        self, record: CanaryRecord, judgement: Judgement, reason: PauseReason, percent: float | None = None
    ) -> CanaryRecord:
        """Keep the weights and wait for a person; where only an answer ends it, the question is put first."""
        about = record.step_percent if percent is None else percent
        deadline = self._policy.pause_deadline_seconds
        now = HostTime.now()
        pause = Pause(reason=reason, percent=about, since=now.wall, began=now, deadline_seconds=deadline)
        record = record.model_copy(update={"judgement": judgement})
        if pause.asks and reason is not PauseReason.APPROVAL:
            self._questions.ask(record, about, reason, anew=True)
        log.warning(judgement.summary, percent=record.step_percent, reason=reason.value)
        kind = EventKind.APPROVAL_ASKED if reason is PauseReason.APPROVAL else EventKind.PAUSED
        record = record.with_event(kind, judgement.summary, by=self._owner, verdict=judgement.verdict)
        marked = record.marked("paused", share=record.share_percent / 100)
        return self._save(marked, phase=Phase.PAUSED, pause=pause)

    def _condemn(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        """Decide to roll back."""
        log.warning(f"rolling back: {judgement.summary}", percent=record.step_percent)
        marked = record.marked(f"rolling back: {judgement.summary}", share=record.step_percent / 100)
        told = marked.with_event(EventKind.ROLLING_BACK, judgement.summary, by=self._owner, verdict=judgement.verdict)
        return self._save(told, phase=Phase.ROLLING_BACK, judgement=judgement, pause=None)

    def _roll_back(self, record: CanaryRecord) -> CanaryRecord:
        want = self._state(record.stable or record.candidate, 1.0, on_trial=False)
        back = give_back(record, want, self._site, token=self._token, by=self._owner)
        return self._save(back, phase=Phase.ROLLED_BACK)

    def _state(self, slot: SlotName, share: float, *, on_trial: bool, standby: SlotName | None = None) -> RouteState:
        mine = round(share * ALL)
        weights = {slot: mine} if mine == ALL else {slot: mine, other_slot(slot): ALL - mine}
        candidate = slot if on_trial else None
        wanted = RouteState(
            weights=weights,
            candidate=candidate,
            standby=standby,
            sticky_header=self._policy.session_header if on_trial else None,
            owner=self._owner,
            epoch=self._epoch,
        )
        return self._router.nearest(wanted)

    def _save(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        heard = {"epoch": self._epoch, "heard_at": time.time()}
        return self._journal.save(record.model_copy(update={**changes, **heard}))

    def _save_later(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        """Save what the router has confirmed; if the store accepts no writes, the next accepted record has it."""
        try:
            return self._save(record, **changes)
        except Transient as error:
            log.warning("the store accepts no writes: the router's changes are recorded later", reason=str(error))
            return record.model_copy(update=changes)

    def _hold(self, record: CanaryRecord, refused: Transient) -> None:
        """Wait a moment while the store refuses writes; the next turn does the same as this one.

        Raises:
            Transient: As `refused`: the candidate has no traffic.
        """
        state = self._router.read()[0]
        if state.candidate != record.candidate or not state.weights.get(record.candidate):
            raise refused
        log.warning(
            "the store accepts no writes, and nothing is moved until it does; `rollback --force` does not wait",
            reason=str(refused),
        )
        time.sleep(self._policy.look_seconds)


def tests_of(record: CanaryRecord) -> AnalysisState:
    """The analysis of a canary that has begun to be compared.

    Raises:
        ConfigError: It has not.
    """
    if record.analysis is None:
        raise ConfigError(f"the canary is {record.phase} without an analysis", where=record.release_id)
    return record.analysis

"""The canary of one release on one target: durable, fenced, level-triggered.

    observe (router, servers, people, traffic) -> decide (pure, see `deciding`) -> act, until the step has ended

Intent is recorded before the router is told or a slot is touched, and confirmation after, so a controller killed
anywhere is continued by the next one: same phase, same idempotent write, same tests. A controller that was taken over
is fenced by its epoch, at the router and at the record. A router found in neither the intended nor the applied state
was changed by another process: the canary pauses and overwrites nothing.

Stable's server is started in every phase as soon as it has ended; the watch goes on while it loads.

While the store accepts no writes, nothing is moved: a candidate with traffic keeps its share, and what was found is
recorded, with its reason, and carried out as soon as the store takes it. (`rollback --force` does not wait.) If the
candidate has no traffic there is nothing to watch: the stage fails, and its next attempt continues.

It looks at the router's log of single requests, or at the counts of a source. Both keep their position in the canary's
record, which is written together with the conclusions.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial

from llm_pipeline.base.errors import ConfigError, Fenced, PipelineError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.canary import analysis, metrics, people
from llm_pipeline.canary.access_log import AccessLog, ObservedRequest
from llm_pipeline.canary.analysis import Outcome, with_look
from llm_pipeline.canary.deciding import PAUSABLE, UNTIL_RESUMED, Seen, condemned, decide, drifted, tests_of, with_pause
from llm_pipeline.canary.moving import (
    NoWayBack,
    end_canary,
    give_back,
    stand_down,
    token_of,
    traffic_to,
    wait_converged,
    wait_usable,
)
from llm_pipeline.canary.record import (
    CanaryJournal,
    CanaryPlan,
    CanaryRecord,
    EventKind,
    Phase,
    is_over,
    new_attempt,
    stated,
)
from llm_pipeline.canary.router import (
    ALL,
    SLOTS,
    RouterConflict,
    RouterUnavailable,
    RouteState,
    SlotName,
    TrafficRouter,
    all_to,
    other_slot,
)
from llm_pipeline.canary.slots import ServedPlace, SlotControl, WarmUp
from llm_pipeline.config.policy import CanaryPolicy
from llm_pipeline.serving.slot_fence import FencingToken
from llm_pipeline.store.lease import Lease, LeaseHeld, LeaseLost
from llm_pipeline.store.place_state import PlaceState, StepApproval, edit_place, read_place

log = get_logger(__name__)

_NOT_ACKNOWLEDGED = stated(Verdict.INCONCLUSIVE, "the router did not take the new weights", "router")
_STARTS_AT_ONCE_SECONDS = 1.0
"""A server that starts within this time is waited for; the watch goes on beside one that takes longer."""

_NOT_THE_STORE = (LeaseHeld, LeaseLost, NoWayBack, RouterConflict, RouterUnavailable)
"""Transient errors that do not come from the store."""

SOURCE_PATIENCE_LOOKS = 30
"""The canary pauses once the source of metrics has been down for this many looks."""

LONGEST_LOOKS = 10.0
"""One look counts for at most this many intervals between looks: a frozen process watched nothing meanwhile."""

BASELINE_SECONDS = 120.0
"""Counts of stable over this long before the first step fix what "slow" means."""

HISTORY_SECONDS = 3600.0
"""Of single requests, so long a history of stable does, as far as it served already and the log goes back: it shows
how much one server wavers, too."""

_HISTORY_BYTES = 64 * 1024 * 1024

MOST_BYTES_A_LOOK = 4 * 1024 * 1024
"""Of the log that one look reads, about 6,000 lines; what is left is for the next one."""

Baseline = tuple[metrics.Thresholds | None, int, CanaryRecord]
"""Stable before the first step: the limits from then on, or None while there are too few requests; how many there are;
and the canary's record, with how far the source was read."""


class LoggedTraffic:
    """Single requests, from the router's own log."""

    def __init__(self, access_log: AccessLog) -> None:
        self._log = access_log

    def baseline(self, record: CanaryRecord, policy: CanaryPolicy) -> Baseline:
        """Stable's requests before the first step; with little traffic a long log is not read again each time."""
        newest = self._of_stable(record)
        if metrics.fix_thresholds(newest, policy) is None:
            return None, len(newest), record
        history = self._of_stable(record, most_bytes=_HISTORY_BYTES)
        return metrics.fix_thresholds(history, policy), len(history), record

    def _of_stable(self, record: CanaryRecord, **bounds: int) -> list[ObservedRequest]:
        """Requests that stable itself answered or failed as production, without those that a standby answered."""
        since = time.time() - HISTORY_SECONDS
        if record.production_since is not None:
            since = max(since, record.production_since.timestamp())
        recent = self._log.recent(since, **bounds)
        mine = [request for request in recent if request.arm == record.stable and not request.on_trial]
        return [request for request in mine if request.server in (None, record.stable)]

    def step_begins(self, record: CanaryRecord) -> CanaryRecord:
        """The record, reading the log from here: after a clock was set back, older requests could seem to be newer."""
        return record.model_copy(update={"cursor": self._log.end(), "in_flight": {}})

    def look(self, record: CanaryRecord, thresholds: metrics.Thresholds) -> tuple[metrics.Window, CanaryRecord]:
        """Both arms since the last look, and the record behind it."""
        requests, cursor = self._log.read(record.cursor, MOST_BYTES_A_LOOK)
        seen = metrics.window(requests, record.candidate, thresholds, record.step_began_at, record.in_flight)
        read = record.model_copy(update={"cursor": cursor, "in_flight": seen.in_flight})
        return seen.model_copy(update={"behind": self._log.behind}), read


class CountedTraffic:
    """Counts of both arms, from a metric source."""

    def __init__(self, source: metrics.ArmMetrics) -> None:
        self._source = source

    def baseline(self, record: CanaryRecord, policy: CanaryPolicy) -> Baseline:
        """Stable's requests, counted from one moment on until there are enough."""
        since = record.metrics_cursor or self._source.begin(BASELINE_SECONDS)
        arms, _ = self._source.window(since)
        _must_have(arms, other_slot(record.candidate))  # the candidate's may begin with its first request
        stable = arms.get(other_slot(record.candidate), metrics.ArmWindow())
        counted = record.model_copy(update={"metrics_cursor": since})
        return metrics.thresholds_from_counts(stable, policy), stable.requests, counted

    def step_begins(self, record: CanaryRecord) -> CanaryRecord:
        """The record, counting again: what was counted before belongs to other weights."""
        return record.model_copy(update={"metrics_cursor": None})

    def look(self, record: CanaryRecord, thresholds: metrics.Thresholds) -> tuple[metrics.Window, CanaryRecord]:
        """The same; raises Transient where the source is down, so nothing may be concluded."""
        arms, cursor = self._source.window(record.metrics_cursor or self._source.begin())
        begun = any(one.total.candidate.requests for one in tests_of(record).metrics)
        _must_have(arms, *(SLOTS if begun else (other_slot(record.candidate),)))
        seen = metrics.window_from_counts(arms, record.candidate, thresholds)
        return seen, record.model_copy(update={"metrics_cursor": cursor})


def _must_have(arms: dict[SlotName, metrics.ArmWindow], *slots: SlotName) -> None:
    if arms and (missing := [slot for slot in slots if slot not in arms]):
        hint = "is its server scraped, and is its label the one in `slots`?"
        raise metrics.SourceDown(f"there are no requests of slot {missing[0]}", hint=hint)


Traffic = LoggedTraffic | CountedTraffic
"""What the controller looks at."""


@dataclass(eq=False)
class CanaryController:
    """Drives a canary's record, one step at a time; holds the target's lease while it does."""

    plan: CanaryPlan
    journal: CanaryJournal
    lease: Lease
    router: TrafficRouter
    traffic: Traffic
    slots: SlotControl
    _token: FencingToken = field(init=False, default=FencingToken(0, 0))
    _looked_at: float | None = field(init=False, default=None)
    _blind_since: float | None = field(init=False, default=None)
    _place: PlaceState = field(init=False, default=PlaceState())
    _warm: WarmUp | None = field(init=False, default=None)
    _starter: ThreadPoolExecutor = field(init=False, default_factory=lambda: ThreadPoolExecutor(max_workers=1))
    _starting: Future[None] | None = field(init=False, default=None)

    @property
    def _at(self) -> ServedPlace:
        return ServedPlace(self.journal.store, "", self.plan.target, self.router, self.slots, self.plan.patience)

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
        record: CanaryRecord | None = None
        while True:
            try:
                record = self._adopt(percent) if record is None else self._turn(record, percent)
            except _NOT_THE_STORE:
                raise
            except Transient as error:
                self._hold(record or self.journal.load(), error)
            self.lease.check()
            if record is not None and record.judgement is not None:
                passed = record.phase is Phase.PASSED and percent <= record.passed_percent
                if record.settled or record.phase is Phase.PAUSED or passed:
                    return record.judgement

    def _adopt(self, percent: float) -> CanaryRecord:
        """Load the record, or make it; writing it with our epoch fences whoever wrote it before."""
        self.lease.confirm()
        self._end_older_release()
        record = self.journal.load() or new_attempt(self.plan)
        self._token = token_of(self.lease, self._at, record)
        self.lease.confirm()  # the next holder reads an epoch at least as high, and goes above ours
        if is_over(record, self.plan, lambda: self.router.read()[0]):
            if record.phase is Phase.ROLLING_BACK:  # an earlier run left it half rolled back
                record = self._roll_back(record).model_copy(update={"phase": Phase.ROLLED_BACK})
            words = "the canary of an earlier run is over: this run starts a new one"
            log.info(words, earlier=record.phase.value, run=self.plan.run)
            record = new_attempt(self.plan, record)
        steps, passed = self.plan.policy.steps_percent, record.passed_percent
        following = [step for step in steps if step > passed][:1]
        if not record.settled and percent not in [step for step in steps if step <= passed] + following:
            where = f"canary of {record.release_id}"
            raise ConfigError(f"step {percent:g} % is not the next one", where=where, hint=f"steps: {steps}")
        record = record.model_copy(update={"run": self.plan.run, "policy": self.plan.policy})

        def on_trial(state: PlaceState) -> PlaceState:
            self.lease.confirm()
            return state.model_copy(update={"on_trial": self.plan.release_id})

        if not record.settled:
            self._place = edit_place(self.journal.store, self.plan.target, on_trial)
        return self._turn(record, percent) if record.phase is Phase.PAUSED else self._save(record)

    def _end_older_release(self) -> None:
        """Another release's canary on this target is rolled back first, however its controller ended."""
        store, target = self.journal.store, self.plan.target
        other = read_place(store, target).on_trial
        journal = CanaryJournal(store, other, target)
        record = journal.load() if other not in ("", self.plan.release_id) else None
        if record is not None and not record.settled:
            log.warning("rolling back another release", release=other, phase=record.phase.value)
            superseded = f"superseded by release {self.plan.release_id}"
            reason = stated(Verdict.INCONCLUSIVE, superseded, "canary")
            end_canary(journal, self._at, lease=self.lease, by=self.plan.driver, reason=reason)

    def _turn(self, record: CanaryRecord, percent: float) -> CanaryRecord:
        """Observe, decide, act; returns the record as saved. A new phase is recorded before anything is done for it."""
        if record.phase is Phase.ROLLING_BACK:  # whatever else can be seen
            return self._save(self._roll_back(self._with_router(record)), phase=Phase.ROLLED_BACK)
        record, seen, revision = self._observe(record, percent)
        before, record = record.phase, decide(record, seen, self.plan, percent)
        if record.phase is before and (record.pause_request is None or before not in PAUSABLE):
            match before:
                case Phase.PENDING:
                    return self._start_candidate(record)
                case Phase.WARM:
                    return self._wait_for_traffic(record)
                case Phase.SHIFTING if record.stable is None:
                    return self._deploy_first(record)
                case Phase.SHIFTING:
                    return self._shift(record, revision)
        if record.pause is not None and record.pause.asks:
            asked = StepApproval(
                release_id=record.release_id,
                run=record.run,
                percent=record.pause.percent,
                question=record.pause.question,
                asked_at=time.time(),
                deadline_seconds=record.pause.deadline_seconds,
            )
            people.ask(self.journal.store, record.target, asked, also=people.runs_of(record))
        return self._save(record)

    def _observe(self, record: CanaryRecord, percent: float) -> tuple[CanaryRecord, Seen, str]:
        """What the phase asks for: the record with what was read, what was found, and the revision of the routes.

        Raises:
            Fenced: A newer owner moved the traffic.
        """
        try:
            self._place = read_place(self.journal.store, self.plan.target)
        except Transient as error:  # it stays as it was read last: an outage resumes nothing
            log.warning("cannot read whether a person paused, resumed or approved it", reason=str(error))
        place = self._place
        record = with_pause(self._with_router(record), place.pause, self.plan.driver)
        held = record.pause_request is not None and record.phase in PAUSABLE
        watches = record.phase is Phase.BAKING or (held and record.phase is Phase.PASSED)
        if held or watches:
            time.sleep(self.plan.policy.look_seconds)
        traffic, revision = self.router.read()
        if traffic.epoch > self._token.epoch:
            words = f"{traffic.owner} moved the traffic with epoch {traffic.epoch}"
            raise Fenced(words, where=record.release_id)
        seen = Seen(time.time(), traffic)
        if watches and drifted(record, traffic) is None:
            record, seen = self._look(record, seen)
        elif record.phase is Phase.PAUSED and record.pause is not None:
            answer = people.standing(place, record, record.pause.percent, record.pause.question)
            passes = record.pause.question == "go on" and answer is not None and answer.answer == "approved"
            differs = self.slots.differs(record.candidate, record.repository) if passes else None
            seen = replace(seen, approval=answer, differs=differs)
        elif record.phase in (Phase.PENDING, Phase.PASSED):
            seen = replace(seen, approval=people.standing(place, record, percent, "begin"))
        elif record.phase is Phase.WARM and not held:
            record, seen = self._warm_up(record, seen)
        production = self.plan.production
        if production is not None and record.phase is Phase.PENDING and not held:
            self.slots.ensure(production.slot, production.repository, self._token)
        candidate_runs = self.slots.alive(record.candidate)
        stable_runs = production is None or self.slots.alive(production.slot)
        self._keep_stable()
        seen = replace(seen, candidate_runs=candidate_runs, stable_runs=stable_runs)
        if record.phase in (Phase.BAKING, Phase.PASSED) or not candidate_runs:
            seen = replace(seen, death=self.slots.engine_death(record.candidate))
        return record, seen, revision

    def _with_router(self, record: CanaryRecord) -> CanaryRecord:
        """Start the router again if it has ended, in every phase: without it every user is refused."""
        try:
            done = self.router.revive()
        except PipelineError as error:
            log.error("the router has ended and does not start", reason=str(error))  # noqa: TRY400 - nothing to trace
            return record
        if done is None:
            return record
        log.warning(done, percent=record.step_percent)
        return record.with_event(EventKind.REVIVED, done, by=self.plan.driver)

    def _keep_stable(self) -> None:
        """Start stable's server if it has ended by itself, whatever the phase; a start that takes long goes on beside.

        Raises:
            Fenced: Somebody else took the slots over.
        """
        production = self.plan.production
        if production is None:
            return
        if self._starting is None and self.slots.ended(production.slot):
            log.warning("stable's server had ended: restarting it", slot=production.slot)
            token = self._token
            self._starting = self._starter.submit(self.slots.ensure, production.slot, production.repository, token)
            wait([self._starting], timeout=_STARTS_AT_ONCE_SECONDS)
        if self._starting is not None and self._starting.done():
            starting, self._starting = self._starting, None
            try:
                starting.result()
            except Fenced:
                raise
            except PipelineError as error:
                log.error("stable's server does not start", reason=str(error))  # noqa: TRY400 - the reason is logged

    def _warm_up(self, record: CanaryRecord, seen: Seen) -> tuple[CanaryRecord, Seen]:
        """Whether the candidate answers, and what is known of stable before the first step."""
        if self._warm is None:
            self._warm = warm = self.slots.warm_up(record.candidate, record.repository)
            log.info("candidate warmed up", prompts=warm.prompts, answered=warm.answered)
            if warm.answered and not wait_usable(self.router, record.candidate, self.plan.patience.usable):
                return record, replace(seen, warm=warm, reached=False)
        seen = replace(seen, warm=self._warm)
        if record.stable is None or not self._warm.answered:
            return record, seen
        try:
            thresholds, requests, record = self.traffic.baseline(record, self.plan.policy)
        except Transient as error:
            log.warning("the source of metrics is down", reason=str(error))
            return record, replace(seen, blind=str(error))
        return record, replace(seen, thresholds=thresholds, requests=requests)

    def _look(self, record: CanaryRecord, seen: Seen) -> tuple[CanaryRecord, Seen]:
        """One look at the step. If the store refuses it, the next look starts where the last recorded one ended."""
        elapsed, held = self._watched(), record.pause_request is not None
        watched = record.watched_seconds + (0.0 if held else elapsed)
        tests = tests_of(record)
        try:
            window, watching = self.traffic.look(record, tests.thresholds)
        except Transient as error:  # the time does not count as baked, and nothing is concluded
            log.warning("the source of metrics is down", reason=str(error))
            self._blind_since = self._blind_since or time.monotonic()
            blind = time.monotonic() - self._blind_since
            if blind > SOURCE_PATIENCE_LOOKS * self.plan.policy.look_seconds:
                seen = replace(seen, blind=f"{error} (for {blind:.0f} s)")
            return record, seen
        self._blind_since = None
        tests = analysis.observe(tests, window, elapsed)
        looks = with_look(record.looks, tests, at=time.time(), percent=record.step_percent)
        record = watching.model_copy(update={"analysis": tests, "looks": looks, "watched_seconds": watched})
        stable_answers = partial(self.slots.answers, other_slot(record.candidate))
        decision = analysis.decide(tests, self.plan.policy, watched, stable_answers)
        passes = decision.outcome is Outcome.PASS
        if passes and (window.behind or not window.news):  # what is not read yet may say otherwise
            return record, seen
        if decision.outcome is Outcome.CONTINUE or (held and decision.outcome in UNTIL_RESUMED):
            return record, replace(seen, decision=decision)
        differs = self.slots.differs(record.candidate, record.repository) if passes else None
        seen = replace(seen, decision=decision, differs=differs)
        if decision.outcome is Outcome.ANOMALOUS:
            mine = self.router.active_requests(record.candidate)
            theirs = self.router.active_requests(other_slot(record.candidate))
            if mine is not None and theirs is not None:
                seen = replace(seen, waiting=(mine, theirs))
        return record, seen

    def _watched(self) -> float:
        """Seconds since the last look, by this process's monotonic clock; the record keeps the sum.

        The first look of a process that continues another one's step counts as one interval between looks.
        """
        look, last = self.plan.policy.look_seconds, self._looked_at
        self._looked_at = time.monotonic()
        return look if last is None else min(self._looked_at - last, LONGEST_LOOKS * look)

    def _start_candidate(self, record: CanaryRecord) -> CanaryRecord:
        self._looked_at = time.monotonic()
        record = self._save(record)
        if record.stable is not None:
            stand_down(self.router, self.plan.patience, owner=self.plan.driver, epoch=self._token.epoch)
        self.slots.replace(record.candidate, record.repository, self._token)
        self.router.name_release(record.candidate, record.release_id)
        started = f"candidate started in {record.candidate}"
        log.info(started)
        record = record.with_event(EventKind.STARTED, started, by=self.plan.driver)
        return self._save(record, phase=Phase.WARM)

    def _wait_for_traffic(self, record: CanaryRecord) -> CanaryRecord:
        """Until stable has had enough requests the candidate, which answers by now, gets those that stable fails."""
        state, revision = self.router.read()
        stable = record.stable or other_slot(record.candidate)
        want = all_to(stable, owner=self.plan.driver, epoch=self._token.epoch, standby=record.candidate)
        want = self.router.nearest(want)
        if want.standby is not None and state.standby != want.standby and want.same_traffic(state):
            wait_converged(self.router, self.router.write(want, revision), self.plan.patience.confirm)
        time.sleep(self.plan.policy.look_seconds)
        watched = record.watched_seconds + self._watched()
        return self._save(record, watched_seconds=watched)

    def _deploy_first(self, record: CanaryRecord) -> CanaryRecord:
        want = self.router.nearest(all_to(record.candidate, owner=self.plan.driver, epoch=self._token.epoch))
        record = self._save(record, intended=want)
        if not traffic_to(self.router, want, self.plan.patience):
            return self._save(condemned(record, _NOT_ACKNOWLEDGED, by=self.plan.driver))
        record = record.with_event(EventKind.PROMOTED, "first deployment: all traffic at once", by=self.plan.driver)
        return self._save(record, phase=Phase.PROMOTED, applied=want, passed_percent=record.step_percent)

    def _shift(self, record: CanaryRecord, revision: str) -> CanaryRecord:
        """Record the intent, write the routes, wait until the router confirms them, record that."""
        mine = round(self.plan.policy.share_at(record.step_percent) * ALL)
        wanted = RouteState(
            weights={record.candidate: mine, other_slot(record.candidate): ALL - mine},
            candidate=record.candidate,
            owner=self.plan.driver,
            epoch=self._token.epoch,
        )
        want = self.router.nearest(wanted)
        tests = analysis.begin_step(tests_of(record), want.weights[record.candidate] / ALL)
        record = self._save(record, intended=want, analysis=tests)
        revision = self.router.write(want, revision)
        if not wait_converged(self.router, revision, self.plan.patience.confirm):
            return self._save(condemned(record, _NOT_ACKNOWLEDGED, by=self.plan.driver))
        self._looked_at = time.monotonic()
        words = f"{record.step_percent:g} % of the traffic to {record.candidate}"
        log.info(words)
        record = record.with_event(EventKind.SHIFTED, words, by=self.plan.driver)
        record = self.traffic.step_begins(record)
        record = record.model_copy(update={"phase": Phase.BAKING, "applied": want, "step_began_at": time.time()})
        try:
            return self._save(record)
        except Transient as error:
            log.warning("the store accepts no writes: the router's changes are recorded later", reason=str(error))
            return record

    def _roll_back(self, record: CanaryRecord) -> CanaryRecord:
        want = all_to(record.stable or record.candidate, owner=self.plan.driver, epoch=self._token.epoch)
        return give_back(record, self.router.nearest(want), self._at, token=self._token, by=self.plan.driver)

    def _save(self, record: CanaryRecord, **changes: object) -> CanaryRecord:
        return self.journal.save(record.model_copy(update={**changes, "epoch": self._token.epoch}))

    def _hold(self, record: CanaryRecord | None, refused: Transient) -> None:
        """Wait a moment while the store refuses writes; the next turn does the same as this one.

        Raises:
            Transient: As `refused`: the candidate has no traffic.
        """
        state = self.router.read()[0]
        mine = record is not None and not record.settled and state.candidate == record.candidate
        if record is None or not mine or not state.weights.get(record.candidate):
            raise refused
        words = "the store accepts no writes, and nothing is moved until it does; `rollback --force` does not wait"
        log.warning(words, reason=str(refused))
        time.sleep(self.plan.policy.look_seconds)

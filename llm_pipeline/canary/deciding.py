"""What a canary does next, by its record and by what was found: pure, so that every case can be tried.

    PENDING -> WARM -> SHIFTING(k) -> BAKING(k) -> PASSED(k) -> ... -> PROMOTED
    any -> ROLLING_BACK -> ROLLED_BACK;  SHIFTING or BAKING -> PAUSED (hold) -> SHIFTING again
    PENDING, WARM, BAKING, PASSED: held while a person's pause stands (see `with_pause`)
    BAKING -> PAUSED (undecided, frozen) or PASSED -> PAUSED (approval) -> as a person answers (see `approvals`)

The phase says what is to be done: PENDING the candidate is to be started, SHIFTING the router to be told, BAKING the
traffic to be watched, ROLLING_BACK all of it to be given back. The controller does that and looks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.logging import get_logger
from llm_pipeline.base.verdict import Evidence, Judgement, Verdict
from llm_pipeline.canary import analysis
from llm_pipeline.canary.analysis import AnalysisState, Outcome, StepDecision, StepState, stable_is_bad
from llm_pipeline.canary.metrics import Thresholds
from llm_pipeline.canary.record import CanaryPlan, CanaryRecord, EventKind, Pause, PauseReason, Phase, all_ended, stated
from llm_pipeline.canary.router import RouteState, all_to
from llm_pipeline.canary.slots import WarmUp
from llm_pipeline.statistics.eprocess import SplitTest
from llm_pipeline.store.place_state import PauseRequest, StepApproval

log = get_logger(__name__)

_RUNNING = frozenset({Phase.WARM, Phase.SHIFTING, Phase.BAKING, Phase.PASSED})
"""The candidate's server must run."""

PAUSABLE = frozenset({Phase.PENDING, Phase.WARM, Phase.BAKING, Phase.PASSED})
"""A person's pause holds the canary there."""

UNTIL_RESUMED = frozenset({Outcome.PASS, Outcome.UNDECIDED})
"""What is not concluded while a person's pause stands."""

MORE_TRAFFIC = (
    "release while there is user traffic, or have the canary replay prompts of the workload, or more of them "
    "(replay_requests_per_second under canary: of the policy, where the router's users' address is known here)"
)
"""How to get enough requests for a judgement."""

_EXPLAINED_ALPHA = 0.05
"""Requests that wait explain a split unless, counted in, they still contradict the intended one at this level. It is
looser than the level of the split's own test, because some requests are always in flight at a server that works."""

_WHOLE_PERCENT = 100.0


@dataclass(frozen=True)
class Seen:
    """What one turn found; what its phase does not ask for is left out.

    Attributes:
        now: Seconds since 1970.
        traffic: What the router was told last.
        candidate_runs: Its server's process is there.
        stable_runs: The same; True where nothing serves yet.
        approval: The question about the step that is to begin, or about the pause; None where nobody asked or answered.
        warm: How the candidate answered the golden prompts.
        reached: The router would send requests to it.
        thresholds: What "slow" means; None while stable had too few requests.
        requests: How many those were.
        decision: What the traffic says of the step; None while it cannot be read.
        blind: Why it cannot be, or stable's before the first step; while a step is watched, once that lasts too long.
        waiting: Requests in flight at the candidate and at stable, where the split is wrong.
        differs: Why the candidate's server does not serve the release, where the step would pass.
        death: How its engine died, by its server's log, while it has traffic or where its process has ended.
    """

    now: float
    traffic: RouteState
    candidate_runs: bool = True
    stable_runs: bool = True
    approval: StepApproval | None = None
    warm: WarmUp | None = None
    reached: bool = True
    thresholds: Thresholds | None = None
    requests: int = 0
    decision: StepDecision | None = None
    blind: str = ""
    waiting: tuple[int, int] | None = None
    differs: str | None = None
    death: str = ""


def decide(record: CanaryRecord, seen: Seen, plan: CanaryPlan, percent: float) -> CanaryRecord:
    """The record as it is to be.

    Args:
        record: As it is, with what was read of the traffic, and with a person's pause.
        seen: What was found.
        plan: What is to be promoted, and by which rules.
        percent: The step that is to be passed.
    """
    return _Turn(seen, plan, percent).decide(record)


def with_pause(record: CanaryRecord, found: PauseRequest | None, by: str) -> CanaryRecord:
    """The record with a person's pause as the place's document has it, and with the events of its beginning and end."""
    wanted = found if found is not None and found.holds(record.began_at) else None
    if wanted == record.pause_request or record.phase not in PAUSABLE:
        return record
    if wanted is not None:
        kind, by, words = EventKind.PAUSED_BY_PERSON, wanted.by, wanted.words()
    else:
        by = found.resumed_by if found is not None else by
        kind, words = EventKind.RESUMED, f"{by} resumed it"
    log.warning(words, percent=record.step_percent)
    return record.with_event(kind, words, by=by).model_copy(update={"pause_request": wanted})


def condemned(record: CanaryRecord, judgement: Judgement, *, by: str) -> CanaryRecord:
    """The record of a canary that is to be rolled back."""
    log.warning(f"rolling back: {judgement.summary}", percent=record.step_percent)
    record = record.with_event(EventKind.ROLLING_BACK, judgement.summary, by=by, verdict=judgement.verdict)
    return record.model_copy(update={"phase": Phase.ROLLING_BACK, "judgement": judgement, "pause": None})


def drifted(record: CanaryRecord, traffic: RouteState) -> Judgement | None:
    """Why the router is in a state that no controller wrote; None if it is not."""
    known = [state for state in (record.intended, record.applied) if state is not None]
    if record.applied is None:
        known.append(all_to(record.stable or record.candidate, owner="", epoch=0))
    if any(traffic.same_traffic(state) for state in known):
        return None
    detail = f"found {traffic.shares}, last told {known[0].shares}: somebody else changed the router"
    words = "paused: the router was changed from outside"
    return stated(Verdict.INCONCLUSIVE, words, "router's weights", detail)


def tests_of(record: CanaryRecord) -> AnalysisState:
    """The analysis of a canary that has begun to be compared.

    Raises:
        ConfigError: It has not.
    """
    if record.analysis is None:
        raise ConfigError(f"the canary is {record.phase} without an analysis", where=record.release_id)
    return record.analysis


@dataclass(frozen=True)
class _Turn:
    """One decision."""

    seen: Seen
    plan: CanaryPlan
    percent: float

    def decide(self, record: CanaryRecord) -> CanaryRecord:
        if record.phase in _RUNNING and not self.seen.candidate_runs:  # its fault, unless stable's has ended as well
            if not self.seen.stable_runs:
                return self._condemn(record, all_ended(record.step_percent))
            words = f"the candidate's server ended at {record.step_percent:g} %"
            ended = stated(Verdict.NO_GO, words, "candidate's process")
            return self._condemn(record, with_death(ended, self.seen.death))
        held = record.pause_request if record.phase in PAUSABLE else None
        if held is not None and held.over(self.seen.now):
            waited = f"nobody resumed it within {held.deadline_seconds:.0f} s"
            words = f"{held.by} paused the canary at {record.share_percent:g} %, and {waited}"
            return self._condemn(record, stated(Verdict.INCONCLUSIVE, words, "pause"))
        match record.phase:
            case Phase.PAUSED:
                return self._after_pause(record)
            case Phase.BAKING:
                return self._after_look(record)
            case Phase.PASSED if held is not None or engine_died(self.seen, record.began_at):  # it has traffic
                return self._after_look(record)
            case Phase.PENDING | Phase.PASSED if held is None:
                return self._next_step(record)
            case Phase.WARM if held is None:
                return self._after_warm_up(record)
            case Phase.SHIFTING:
                return self._unless_drifted(record) or record
            case _:
                return record

    def _next_step(self, record: CanaryRecord) -> CanaryRecord:
        """Start the candidate, or begin a step, once a person approved where one is needed."""
        approval = self.seen.approval
        if self.percent in self.plan.policy.approve_before_percent and record.stable is not None:
            if approval is None or approval.answer == "waiting":
                words = f"step {self.percent:g} % waits for an approval"
                plan = self.plan
                answer = f"llm-pipeline approve-step {plan.release_id} {plan.target} {self.percent:g} [--deny]"
                asked = stated(Verdict.INCONCLUSIVE, words, "approval", answer)
                return self._pause(record, asked, PauseReason.APPROVAL, self.percent)
            if approval.answer != "approved":
                return self._refuse(record, approval)
            record = record.with_event(EventKind.APPROVED, f"step {self.percent:g} % may begin", by=approval.by)
        if record.phase is Phase.PASSED:
            return _begin_step(record, self.percent)
        paused = self._unless_drifted(record)  # or else nothing is started and stopped
        return paused or record.model_copy(update={"candidate_started": True})

    def _after_warm_up(self, record: CanaryRecord) -> CanaryRecord:
        """Wait for enough of stable's requests to say what slow means, then begin the tests and the first step."""
        seen, policy = self.seen, self.plan.policy
        if seen.warm is None:
            return record
        if seen.warm.answered == 0:
            words = "the candidate does not answer"
            silent = stated(Verdict.NO_GO, words, "golden prompts answered", measured=0.0, samples=seen.warm.prompts)
            return self._condemn(record, silent)
        if not seen.reached:
            words = "the router does not reach the candidate: its health checks do not accept it"
            return self._condemn(record, stated(Verdict.NO_GO, words, "candidate's health"))
        if record.stable is None:  # nothing to compare with, and no user to protect: all traffic at once
            words, name = "first deployment on this target", "first deployment: golden prompts answered"
            detail = "nothing was in production on this target: no comparison was possible"
            deployed = stated(Verdict.GO, words, name, detail, measured=seen.warm.answered, samples=seen.warm.prompts)
            first = {"phase": Phase.SHIFTING, "step_percent": _WHOLE_PERCENT, "judgement": deployed}
            return record.model_copy(update=first)
        waited_long = record.watched_seconds > policy.maximum_bake_seconds
        if seen.thresholds is None:
            if not (waited_long and seen.stable_runs):  # or else only the candidate runs
                return record
            if seen.blind:
                return self._condemn(record, _source_down(seen.blind))
            words, name = "too little traffic to compare with", "stable's requests before the first step"
            detail = f"production has {seen.requests} of {policy.minimum_requests} requests: {MORE_TRAFFIC}"
            few = stated(Verdict.INCONCLUSIVE, words, name, detail, measured=seen.requests, samples=seen.requests)
            return self._condemn(record, few)
        tests = analysis.begin(seen.thresholds, policy)
        return _begin_step(record.model_copy(update={"analysis": tests}), self.percent)

    def _after_look(self, record: CanaryRecord) -> CanaryRecord:
        if (paused := self._unless_drifted(record)) is not None:
            return paused
        if engine_died(self.seen, record.began_at):
            words = f"the candidate's engine died at {record.step_percent:g} %"
            died = stated(Verdict.NO_GO, words, "candidate's engine")
            return self._condemn(record, with_death(died, self.seen.death))
        decision, step = self.seen.decision, tests_of(record).step
        if decision is None or step is None:
            if not self.seen.blind:
                return record
            return self._pause(record, _source_down(self.seen.blind), PauseReason.NO_SOURCE)
        judgement, policy = decision.judgement, self.plan.policy
        if record.pause_request is not None and decision.outcome in UNTIL_RESUMED:
            return record.model_copy(update={"judgement": judgement})  # whoever paused it resumes it
        match decision.outcome:
            case Outcome.CONTINUE:
                return record.model_copy(update={"judgement": judgement})
            case Outcome.PASS:
                return self._pass(record, judgement)
            case Outcome.ANOMALOUS:
                hangs = self.seen.waiting and does_not_answer(step, *self.seen.waiting)
                if hangs:  # requests that hang at the candidate make the split look wrong, and users are waiting
                    return self._condemn(record, with_death(hangs, self.seen.death))
                return self._pause(record, judgement, PauseReason.WRONG_SPLIT)
            case Outcome.REGRESSED:
                return self._condemn(record, with_death(judgement, self.seen.death))
            case Outcome.UNDECIDED if stable_is_bad(step):  # there is no stable to roll back to
                return self._pause(record, judgement, PauseReason.UNDECIDED)
            case Outcome.UNDECIDED if policy.on_undecided == "roll_back":
                return self._condemn(record, judgement)
        if step.split.candidate < policy.minimum_requests:
            words = f"{judgement.summary}; too little traffic: approve the step, or {MORE_TRAFFIC}"
            judgement = judgement.model_copy(update={"summary": words})
        return self._pause(record, judgement, PauseReason.UNDECIDED)

    def _pass(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        if self.seen.differs is not None:
            at = f"{record.step_percent:g} %"
            words = f"the candidate's server does not serve this release at {at}: {self.seen.differs}"
            return self._condemn(record, stated(Verdict.NO_GO, words, "candidate's golden answers"))
        last = record.step_percent >= _WHOLE_PERCENT
        if last and (paused := self._unless_drifted(record)) is not None:
            return paused
        kind, phase = (EventKind.PROMOTED, Phase.PROMOTED) if last else (EventKind.PASSED, Phase.PASSED)
        record = record.with_event(kind, judgement.summary, by=self.plan.driver, verdict=judgement.verdict)
        passed = {"phase": phase, "judgement": judgement, "passed_percent": record.step_percent, "pause": None}
        return record.model_copy(update=passed)

    def _after_pause(self, record: CanaryRecord) -> CanaryRecord:
        """Go on after a pause whose cause has gone, or as a person answered; until then it stays paused."""
        pause, answer = record.pause, self.seen.approval
        if pause is not None and pause.asks and answer is not None and answer.answer != "waiting":
            if answer.answer != "approved":
                return self._refuse(record, answer)
            if pause.reason is PauseReason.APPROVAL:
                phase = Phase.PASSED if record.passed_percent else Phase.PENDING
                return record.model_copy(update={"phase": phase, "pause": None})
            return self._accept(record, answer, pause)
        if pause is not None and pause.over(self.seen.now):
            return self._condemn(record, nobody_answered(pause.percent, pause.deadline_seconds))
        if pause is not None and pause.asks:
            return record
        log.info("continuing after a pause", percent=record.step_percent)
        record = record.with_event(EventKind.RESUMED, "continuing after a pause", by=self.plan.driver)
        if record.analysis is None:
            return record.model_copy(update={"phase": Phase.PENDING, "pause": None})
        return _begin_step(record, record.step_percent)

    def _accept(self, record: CanaryRecord, answer: StepApproval, pause: Pause) -> CanaryRecord:
        """A person lets the step pass."""
        tests = tests_of(record)
        requests = max(1, tests.step.candidate.requests if tests.step else 0)
        record = record.with_event(EventKind.APPROVED, f"go on after step {pause.percent:g} %", by=answer.by)
        words, name = f"{answer.by} let step {pause.percent:g} % pass", "a person's decision"
        return self._pass(record, stated(Verdict.GO, words, name, measured=pause.percent, samples=requests))

    def _refuse(self, record: CanaryRecord, answer: StepApproval) -> CanaryRecord:
        if answer.answer == "timed out":
            return self._condemn(record, nobody_answered(answer.percent, answer.deadline_seconds))
        words = f"denied: step {answer.percent:g} %"
        record = record.with_event(EventKind.DENIED, words, by=answer.by, verdict=Verdict.NO_GO)
        denied = f"{answer.by} denied step {answer.percent:g} %"
        return self._condemn(record, stated(Verdict.NO_GO, denied, "approval", measured=answer.percent))

    def _unless_drifted(self, record: CanaryRecord) -> CanaryRecord | None:
        """The record paused, if somebody else changed the router: nothing is overwritten."""
        drift = drifted(record, self.seen.traffic) if record.stable is not None else None
        return None if drift is None else self._pause(record, drift, PauseReason.CHANGED_OUTSIDE)

    def _pause(
        self, record: CanaryRecord, judgement: Judgement, reason: PauseReason, percent: float | None = None
    ) -> CanaryRecord:
        """Keep the weights and wait for a person; `percent` is the step that is asked about."""
        pause = Pause(
            reason=reason,
            percent=record.step_percent if percent is None else percent,
            since=self.seen.now,
            deadline_seconds=self.plan.policy.pause_deadline_seconds,
        )
        log.warning(judgement.summary, percent=record.step_percent, reason=reason.value)
        kind = EventKind.APPROVAL_ASKED if reason is PauseReason.APPROVAL else EventKind.PAUSED
        record = record.with_event(kind, judgement.summary, by=self.plan.driver, verdict=judgement.verdict)
        return record.model_copy(update={"phase": Phase.PAUSED, "judgement": judgement, "pause": pause})

    def _condemn(self, record: CanaryRecord, judgement: Judgement) -> CanaryRecord:
        return condemned(record, judgement, by=self.plan.driver)


def _source_down(why: str) -> Judgement:
    return stated(Verdict.INCONCLUSIVE, f"the source of metrics is down: {why}", "source of metrics")


def _begin_step(record: CanaryRecord, percent: float) -> CanaryRecord:
    """The router is to be told; the step's own counts begin once it has confirmed."""
    begun = {"step_percent": percent, "step_began_at": 0.0, "watched_seconds": 0.0, "pause": None}
    return record.model_copy(update={"phase": Phase.SHIFTING, **begun})


def does_not_answer(step: StepState, candidate_waits: int, stable_waits: int) -> Judgement | None:
    """The judgement if the split looks wrong only because requests hang at the candidate; None otherwise.

    A request is logged when it ends, or some time after it began, so one that hangs looks like one that the router
    never sent. More requests than are missing may be waiting: the log lags behind the router.

    Args:
        step: The step, of which the split contradicts the intended one.
        candidate_waits: Requests in flight at the candidate.
        stable_waits: The same at stable.
    """
    split = step.split
    if split.measured is None or split.measured >= split.intended:
        return None
    sent = SplitTest(intended=split.intended).observe(
        candidate_requests=split.candidate + candidate_waits,
        stable_requests=split.total - split.candidate + stable_waits,
    )
    sent_too_few = sent.rejects(_EXPLAINED_ALPHA) and (sent.measured or 0.0) < split.intended
    if not candidate_waits or sent_too_few:
        return None
    waiting = f"{candidate_waits} requests are waiting at the candidate, {stable_waits} at stable"
    detail = f"{waiting}, so the router did send the intended share"
    summary, name = f"the candidate does not answer at {step.percent}", "candidate's requests in flight"
    return stated(Verdict.NO_GO, summary, name, detail, measured=float(candidate_waits), samples=1)


def with_death(judgement: Judgement, death: str) -> Judgement:
    """A judgement against the candidate, with what its server's log says of its engine's death; empty if nothing."""
    if not death:
        return judgement
    fact = Evidence(name="candidate's log", verdict=judgement.verdict, measured=1.0, samples=1, detail=death)
    words = f"{judgement.summary}; its log says: {death}"
    return judgement.model_copy(update={"summary": words, "evidence": (*judgement.evidence, fact)})


def engine_died(seen: Seen, began: float) -> bool:
    """Whether the log of the candidate's server says when its engine died, and it was since then, while stable runs."""
    try:
        return seen.stable_runs and datetime.fromisoformat(seen.death.partition(" ")[0]).timestamp() >= int(began)
    except ValueError:
        return False


def nobody_answered(percent: float, seconds: float) -> Judgement:
    """Nobody answered a canary's question before its deadline."""
    words = f"waited at {percent:g} % and nobody answered within {seconds:.0f} s"
    return stated(Verdict.INCONCLUSIVE, words, "approval", measured=percent)

"""Running a release on this machine without Airflow: the same flow, one step after the other.

Targets whose places name GPUs of their own go through their steps side by side.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path

from llm_pipeline.base.errors import InternalError, PipelineError, Transient
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.base.verdict import Verdict, worst
from llm_pipeline.canary.people import answer
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.notifications.telling import (
    Event,
    Origin,
    answered,
    asked,
    failed,
    judged,
    keep_run,
    tell,
    tell_canary,
)
from llm_pipeline.operations.decisions import decide, put
from llm_pipeline.operations.upkeep import replace_holders
from llm_pipeline.planning.host import check_directories, require_routers
from llm_pipeline.planning.memory import climbing_order
from llm_pipeline.questions import question_of, replaces_nothing
from llm_pipeline.release.candidate import target_of
from llm_pipeline.release.claim import Claimant, LocalProcess, ReleaseClaim
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.flow import clears_up, step_named
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.rules import Endings, run_fails, unstarted
from llm_pipeline.release.step import Effect, Ending, Kind, Scope
from llm_pipeline.release.tasks import Instance, Lane, Task, instances, release_tasks
from llm_pipeline.release_progress import ReleaseProgress, passed, placement, resolve_request
from llm_pipeline.runners.runner import Job, Runners, Watch
from llm_pipeline.store import open_store
from llm_pipeline.store.provenance import user_here

_POLL_SECONDS = 0.1
_ATTEMPTS = 3
_BACK_OFF_SECONDS = 5.0
_FIRST = "resolve"
"""The stage that makes the release; the flow is walked from there."""


Approve = Callable[[str], bool | None]
"""Asks a human the question: True, False, or None when nobody can be asked now."""

log = logging.getLogger("llm_pipeline.run")


class LocalRun:
    """One release from its config to its verdict.

    Attributes:
        flow: The release, once it is resolved.

    Args:
        path: The release config.
        approve: How to ask for the human decisions, before production among them.
        apart: How to ask about steps of these names instead.
        overrides: What the run is to have otherwise than the config says; None for nothing.
        replace: Take the release's places over from the models that hold them.
    """

    def __init__(
        self,
        path: Path,
        *,
        approve: Approve,
        apart: Mapping[str, Approve] | None = None,
        overrides: Overrides | None = None,
        replace: bool = False,
    ) -> None:
        self._approve, self._apart = approve, apart or {}
        self._loaded = loaded = load_release(path, overrides or Overrides())
        check_directories(loaded)
        require_routers(loaded)
        self._deployment = loaded.deployment
        self._store = open_store(loaded.deployment.store)
        self._replace = replace
        self._runner = Runners(self._deployment)
        claimant = Claimant.of(loaded.config, LocalProcess.here())
        self._claim = ReleaseClaim(self._store, loaded.config.model.id, claimant)
        self._jobs: list[Job] = []
        self._stopped = False
        self._started = time.monotonic()
        self._tasks: tuple[Task, ...] = ()
        self._endings = Endings(())
        self._errors: list[PipelineError] = []
        self._refusals: list[Verdict] = []
        self.flow: ReleaseProgress | None = None

    def run(self) -> Verdict:
        """Run the release and return its verdict. First it waits for its turn among the model's releases.

        A target whose gate fails stops itself only: the others go on, and the verdict is that of the one that failed.

        Raises:
            PipelineError: A stage failed for a reason that is no verdict.
        """
        try:
            with self._claim.held():
                try:
                    return self._run_in_turn()
                finally:
                    self._stop_stages()  # before the claim is given back
        except PipelineError as error:
            if error not in self._errors:  # those were told when their stage ended
                self._tell(failed(self._origin, "", "", error))
            raise

    def _run_in_turn(self) -> Verdict:
        loaded = self._loaded
        if self._replace:
            replace_holders(self._store, loaded.places.values(), loaded.config.model.id, by=user_here())
        self._claim.check()
        resolved = self._process(resolve_request(loaded, loaded.overrides.revision, by=user_here()))
        self.flow = flow = ReleaseProgress.open(self._deployment, resolved.release_id)
        tasks = release_tasks(flow.release, climbing_order(flow.release, flow.record.facts))
        self._tasks, self._endings = tasks, Endings(tasks)
        order = tuple(instances(tasks))
        try:
            for lane, members in groupby(order, key=lambda instance: instance.task.lane):
                self._take_lane(flow, lane, tuple(members))
        finally:
            self._stop_stages()
            for instance in order:  # whatever came up: nothing staged outlives the run, and no canary is left half-way
                if not instance.task.step.decides and instance not in self._endings:
                    self._take(flow, instance)
        for other in self._errors[1:]:
            log.error("%s", other.told)
        if self._errors:
            raise self._errors[0]
        if self._refusals:
            return worst(self._refusals)
        if left := tuple(run_fails(tasks, self._endings)):
            raise InternalError(f"{left} did not end well, and no stage said why")
        return Verdict.GO

    def _take_lane(self, flow: ReleaseProgress, lane: Lane | None, members: Sequence[Instance]) -> None:
        """Take what belongs together: targets on GPUs of their own side by side, each in its order."""
        items = [tuple(own) for _, own in groupby(members, key=lambda instance: instance.item)]
        if lane is None or len(items) == 1 or not self._stand_apart(lane):
            self._take_all(flow, members)
            return
        try:
            with ThreadPoolExecutor(len(items)) as threads:
                taken = [threads.submit(self._take_all, flow, own) for own in items]
                try:
                    for one in as_completed(taken):
                        one.result()
                except BaseException:
                    self._stopped = True
                    self._stop_stages()
                    raise
        finally:
            self._stopped = False  # what clears up begins

    def _take_all(self, flow: ReleaseProgress, members: Sequence[Instance]) -> None:
        for instance in members:
            if not self._stopped:
                self._take(flow, instance)

    def _stand_apart(self, lane: Lane) -> bool:
        """Whether the servers of all its targets are on this host, each target's on GPUs that no other one has."""
        if lane.group.over not in (Scope.TARGET, Scope.CANDIDATE):
            return False
        places = [self._deployment.places[self._loaded.places[target_of(item)]] for item in lane.items]
        servers = [tuple(place.servers_here().values()) for place in places]
        if not all(servers) or any(server.gpus is None for own in servers for server in own):
            return False
        gpus = [{gpu for server in own for gpu in server.gpus or ()} for own in servers]
        return sum(map(len, gpus)) == len(set().union(*gpus))

    def _take(self, flow: ReleaseProgress, instance: Instance) -> None:
        """Run one step for one item, if the flow's rules let it start."""
        ending = unstarted(instance, self._endings) or self._held_back(flow, instance)
        if ending is not None:
            self._endings.end(instance, ending)
            return
        self._endings.start(instance)
        step = instance.task.step
        ending = Ending.GOOD
        if step.kind is Kind.QUESTION:
            ending = self._ask(flow, instance)
        elif step.is_stage and step.name != _FIRST:
            ending = self._run(flow, instance)
        self._endings.end(instance, ending)

    def _held_back(self, flow: ReleaseProgress, instance: Instance) -> Ending | None:
        """What keeps an instance from starting besides the rules.

        Raises:
            ClaimLost: This run does not hold the claim on its model.
        """
        step = instance.task.step
        if step.decides:
            self._claim.check(flow.record.release_id)
        elif step.effect is not Effect.RECORD and step.is_stage and self._fenced():
            return Ending.SKIPPED
        if step.is_attempt and (why := flow.passed_over(instance.item)):
            if instance.task is next(task for task in self._tasks if task.lane == instance.task.lane):
                log.info("%s is skipped: %s", instance.item, why)
            return Ending.SKIPPED
        return None

    def _run(self, flow: ReleaseProgress, instance: Instance) -> Ending:
        """Run a stage; an error or a verdict other than GO ends only what comes after it."""
        step = instance.task.step
        try:
            result = self._process(flow.request(step.stage_name, instance.subject))
        except PipelineError as error:
            self._failed(instance, error)
            return Ending.FAILED
        if passed(result) or result.judgement is None:
            return Ending.GOOD
        if not step.is_attempt:  # a recipe that is refused ends itself only, for the next one may do
            self._refusals.append(result.judgement.verdict)
        return Ending.FAILED

    def _failed(self, instance: Instance, error: PipelineError) -> None:
        step = instance.task.step
        self._tell(failed(self._origin, step.stage_name, instance.subject, error))
        if step.is_attempt:
            log.warning("%s failed, the next one is tried: %s", _name(instance), error)
        elif step.decides or step.effect is Effect.PRODUCTION:
            log.error("%s failed: %s", _name(instance), error.kind)  # what it says ends the run
            self._errors.append(error)
        else:
            log.warning("%s failed, and the release goes on: %s", _name(instance), error)

    def _ask(self, flow: ReleaseProgress, instance: Instance) -> Ending:
        """Ask a step's question."""
        task = instance.task
        if task.percent is not None:
            return self._ask_about_step(flow, instance, task.percent)
        offered = [target for target in flow.targets if self._endings.well(task.gates, target)]
        question = question_of(task.step.name, flow, offered)
        if question is None:
            return Ending.GOOD
        decision = put(flow, task.step.name, offered, question)
        approved: bool | None = decision.answer == "approved"
        if decision.answer == "waiting":
            self._claim.park()
            ask = self._apart.get(task.step.name, self._approve)
            self._tell_question(ask, question.line, question.open, instance.item)
            approved = ask(question.line)
            if approved is not None:
                by = f"{user_here()}, run without Airflow"
                decision = decide(flow, task.step.name, offered, approved=approved, by=by).decision
                approved = decision.answer == "approved"
        if decision.answer != "waiting":
            told = answered(self._origin, question.line, subject=instance.item, answer=decision.answer, by=decision.by)
            self._tell(told)
        if approved:
            self._endings.refused |= {target for target in offered if not decision.takes(target)}
            return Ending.GOOD
        log.info("%s", question.open if approved is None else question.declined)
        self._refusals.append(Verdict.INCONCLUSIVE if approved is None else Verdict.NO_GO)
        return Ending.FAILED

    def _ask_about_step(self, flow: ReleaseProgress, instance: Instance, percent: float) -> Ending:
        """Ask before a step that the policy wants a person for, unless there is nothing to compare it with."""
        target, release_id = instance.item, flow.record.release_id
        if replaces_nothing(flow, target):
            return Ending.GOOD
        question = f"Move {percent:g} % of the traffic of {target} to {release_id}?"
        self._tell_question(self._approve, question, "on the terminal of the run.", target)
        approved = self._approve(question)
        if approved is None:
            log.info("step %s needs a person, and there is no terminal to ask on: rolling back", instance.subject)
            self._refusals.append(Verdict.INCONCLUSIVE)
            return Ending.FAILED
        place, run = flow.record.place_of(target), flow.resolved_at.isoformat()
        answer(flow.store, release_id, place, percent, approved=approved, by="the terminal", run=run)
        said = "approved" if approved else "denied"
        self._tell(answered(self._origin, question, subject=target, answer=said, by="the terminal"))
        if not approved:
            self._refusals.append(Verdict.NO_GO)
        return Ending.GOOD if approved else Ending.FAILED

    def _tell_question(self, ask: Approve, question: str, action: str, item: str) -> None:
        """Nobody waits for an answer that the command line gave ahead."""
        if ask is ask_on_terminal:
            self._tell(asked(self._origin, question, subject=item, until=None, action=action))

    def _stop_stages(self) -> None:
        for job in tuple(self._jobs):
            if self._runner.is_active(job):
                self._runner.cancel(job)

    def _fenced(self) -> bool:
        """Whether another release took over, and with it the servers; one that cannot be read did not."""
        try:
            other = self._claim.taken_by_another()
        except PipelineError as error:
            log.warning("cannot tell who holds the claim on the model: %s", error)
            return False
        if other is not None:
            log.warning("%s took over: its servers are left alone", other)
        return other is not None

    def _process(self, request: StageRequest) -> StageResult:
        """Run one stage's process, again after a transient error; one line when it is done."""
        for attempt in range(1, _ATTEMPTS + 1):
            started = time.monotonic()
            try:
                job = self._runner.submit(request, placement(request))
                self._jobs.append(job)
                if self._stopped:
                    self._stop_stages()
                result = self._wait(job, request.stage)
                self._jobs.remove(job)
            except Transient as error:
                if attempt == _ATTEMPTS or self._stopped:
                    raise
                self._tell(failed(self._origin, request.stage, request.subject, error, tried_again=True))
                log.warning("%s: %s; trying again in %g s", request.stage, error, _BACK_OFF_SECONDS * attempt)
                time.sleep(_BACK_OFF_SECONDS * attempt)
                continue
            log.info("%s", self._line(result, time.monotonic() - started))
            self._tell_end(result, request)
            return result
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _tell_end(self, result: StageResult, request: StageRequest) -> None:
        """Tell a verdict, and what happened to a canary that the stage moved; keep a release that has its report."""
        self._tell(judged(Origin(self._deployment.name, result.release_id), result))
        step = step_named(request.stage)
        if step is not None and step.effect is Effect.PRODUCTION:
            place = self._loaded.places[target_of(request.subject)]
            tell_canary(self._deployment, place, result.release_id)
        if step is not None and step.name == "report":
            keep_run(self._store, self._deployment, result.release_id)

    @property
    def _origin(self) -> Origin:
        return Origin(self._deployment.name, self.flow.record.release_id if self.flow else self._loaded.config.name)

    def _tell(self, *events: Event | None) -> None:
        tell(self._deployment, filter(None, events))

    def _wait(self, job: Job, stage: str) -> StageResult:
        relay = LogRelay(logging.getLogger(f"llm_pipeline.stage.{stage}"), log)
        watch = Watch(job, relay.relay)
        while watch.look(self._runner):
            time.sleep(_POLL_SECONDS)
        return self._runner.outcome(job)

    def _line(self, result: StageResult, seconds: float) -> str:
        elapsed = time.monotonic() - self._started
        name = f"{result.stage} {result.subject}".strip()
        done = str(result.metrics.get("phase", "done")) if clears_up(result.stage) else "done"
        state = "reused" if result.reused else done
        verdict = f"  {result.judgement.verdict}" if result.judgement else ""
        return f"{elapsed:7.1f} s  {name:<28} {state:<6} {seconds:6.1f} s{verdict}"


def _name(instance: Instance) -> str:
    return f"{instance.task.step.stage_name} {instance.subject}".strip()


def ask_on_terminal(question: str) -> bool | None:
    """Ask on the terminal; None if there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    sys.stderr.write(f"{one_line(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")

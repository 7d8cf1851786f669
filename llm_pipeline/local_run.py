"""Running a release on this machine without Airflow: the same stages, the same order, one after the other."""

from __future__ import annotations

import getpass
import logging
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from llm_pipeline.accuracy.choice import recipes_in_words
from llm_pipeline.base.errors import PipelineError, Transient
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.base.untrusted_text import one_line
from llm_pipeline.base.verdict import Judgement, Verdict
from llm_pipeline.config.loading import load_release
from llm_pipeline.flow import Flow, passed, placement, resolve_request
from llm_pipeline.license_question import license_change_to_review
from llm_pipeline.notifications.channels import secrets_here
from llm_pipeline.notifications.outbox import notify
from llm_pipeline.operations.approval import answer
from llm_pipeline.operations.replacement import replace
from llm_pipeline.release.claim import ReleaseClaim
from llm_pipeline.release.claim_state import Claimant, LocalProcess
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.runners.runner import Job
from llm_pipeline.runners.runners import Runners
from llm_pipeline.store import open_store

_POLL_SECONDS = 0.1
_ATTEMPTS = 3
_BACK_OFF_SECONDS = 5.0
_TOLD_OF = frozenset({"canary", "settle", "rollback"})


Approve = Callable[[str], bool | None]
"""Asks a human the question: True, False, or None when nobody can be asked now."""

log = logging.getLogger("llm_pipeline.run")


class Stopped(PipelineError):
    """A gate did not say GO; the release stops, and what was staged is taken down."""

    def __init__(self, stage: str, subject: str, judgement: Judgement) -> None:
        super().__init__(f"{stage} {subject}".strip() + f": {judgement.verdict}: {judgement.summary}")
        self.judgement = judgement


class LocalRun:
    """One release from its config to its verdict.

    Attributes:
        flow: The release, once it is resolved.

    Args:
        path: The release config.
        approve: How to ask for the human decisions: about a changed licence, and before production.
        revision: Branch, tag or commit to use instead of the config's.
        verbose: Relay every log line of every stage, not only warnings.
        replace: Take the release's places over from the models that hold them.
    """

    def __init__(
        self,
        path: Path,
        *,
        approve: Approve,
        revision: str | None = None,
        verbose: bool = False,
        replace: bool = False,
    ) -> None:
        self._path = path
        self._approve = approve
        self._revision = revision
        self._verbose = verbose
        loaded = load_release(path)
        self._deployment = loaded.deployment
        self._places = loaded.places
        self._model_id = loaded.config.model.id
        self._replace = replace
        self._runner = Runners(self._deployment)
        self._claim = ReleaseClaim(
            open_store(self._deployment.store),
            self._model_id,
            Claimant.of(loaded.config, LocalProcess.here(), asked_at=datetime.now(UTC)),
        )
        self._job: Job | None = None
        self._started = time.monotonic()
        self.flow: Flow | None = None

    def run(self) -> Verdict:
        """Run every stage; returns the verdict. First it waits for its turn among the model's releases.

        Raises:
            Superseded: A newer release of the model took this one's place; what this one staged is taken down.
            PipelineError: A stage failed for a reason that is no verdict.
        """
        with self._claim.held():
            try:
                if self._replace:
                    self._hand_over()
                resolved = self._stage(resolve_request(self._path, self._revision))
                self.flow = Flow.open(self._deployment, resolved.release_id)
                return self._release(self.flow)
            finally:
                self._stop_stage()  # before the claim is given back

    def _hand_over(self) -> None:
        store, by = open_store(self._deployment.store), f"{getpass.getuser()}@{socket.gethostname()}"
        replace(store, self._places.values(), self._model_id, by=by)

    def _release(self, flow: Flow) -> Verdict:
        staged: list[str] = []
        promoting: list[str] = []
        try:
            if (refused := self._review_license(flow)) is not None:
                return refused
            self._judge_recipes(flow)
            self._judge_targets(flow, staged)
            return self._promote(flow, promoting)
        except Stopped as stopped:
            log.info("%s", stopped.message)
            return stopped.judgement.verdict
        finally:
            self._clean_up(flow, staged, promoting)

    def _review_license(self, flow: Flow) -> Verdict | None:
        """Before a byte is fetched: what ends the release here, or None."""
        change = license_change_to_review(flow)
        if not change:
            return None
        self._claim.park()
        accepted = self._approve(f"The licence of {flow.record.model.id} changed ({change}). Release it?")
        if accepted is None:
            log.info("the licence changed (%s) and a human decides: run it again with --approve (or --reject)", change)
            return Verdict.INCONCLUSIVE
        if not accepted:
            log.info("rejected, for the licence changed (%s): nothing was fetched", change)
            return Verdict.NO_GO
        return None

    def _judge_recipes(self, flow: Flow) -> None:
        self._stage(flow.request("eval_data"))  # first: it takes seconds, and what it refuses costs no download
        self._stage(flow.request("download"))
        self._stage(flow.request("baseline"))
        self._gate(flow.request("baseline_gate"))
        for recipe in flow.recipes:
            if why := flow.passed_over(recipe):
                log.info("%s is passed over: %s", recipe, why)
            else:
                self._try_recipe(flow, recipe)

    def _try_recipe(self, flow: Flow, recipe: str) -> None:
        """Quantize and judge; an error ends this recipe only, for the next one may do."""
        for stage in ("quantize", "accuracy"):
            request = flow.request(stage, recipe)
            self._claim.check(request.release_id)
            try:
                self._process(request)
            except PipelineError as error:
                log.warning("%s %s failed, the next recipe is tried: %s", stage, recipe, error)
                return

    def _judge_targets(self, flow: Flow, staged: list[str]) -> None:
        for target in flow.targets:
            self._gate(flow.request("choose", target))
            self._stage(flow.request("build", target))
            self._stage(flow.request("package", target))
            staged.append(target)
            for gate in ("staging", "served_accuracy", "load_test"):
                self._gate(flow.request(gate, target))
            self._stage(flow.request("staging_down", target))
            staged.remove(target)

    def _promote(self, flow: Flow, promoting: list[str]) -> Verdict:
        approved = not flow.release.approval.required or self._ask_for_production(flow)
        if approved is None:
            log.info("every gate says GO; production waits for a human: run it again with --approve (or --reject)")
            return Verdict.INCONCLUSIVE
        if not approved:
            log.info("rejected: production is as it was")
            return Verdict.NO_GO
        for target in flow.targets:
            promoting.append(target)
            for step in flow.canary_steps(target):
                if (refused := self._step_refused(flow, target, step)) is not None:
                    return refused
                self._gate(flow.request("canary", step))
            self._gate(flow.request("settle", target))
            promoting.remove(target)  # nothing of it is left to be rolled back
        return Verdict.GO

    def _ask_for_production(self, flow: Flow) -> bool | None:
        self._claim.park()
        recipes = recipes_in_words({target: flow.chosen_recipe(target) for target in flow.targets})
        return self._approve(f"Promote {flow.record.release_id} ({recipes}) to production?")

    def _step_refused(self, flow: Flow, target: str, step: str) -> Verdict | None:
        """Ask before a step that the policy wants a person for: why it does not begin, or None."""
        percent = float(step.rpartition(":")[2])
        if percent not in flow.release.policy.canary.approve_before_percent:
            return None
        approved = self._approve(f"Move {percent:g} % of the traffic of {target} to {flow.record.release_id}?")
        if approved is None:
            log.info("step %s waits for a human, and nobody can be asked: it is rolled back", step)
            return Verdict.INCONCLUSIVE
        run = flow.resolved_at.isoformat()
        release = flow.record.release_id
        place = flow.record.place_of(target)
        answer(flow.store, release, place, percent, approved=approved, by="the terminal", run=run)
        return None if approved else Verdict.NO_GO

    def _clean_up(self, flow: Flow, staged: list[str], promoting: list[str]) -> None:
        """Nothing staged outlives the run, no canary is left half-way, and there is always a report."""
        self._stop_stage()
        if not self._fenced():
            for target in promoting:
                self._process(flow.request("rollback", target))
            for target in staged:
                self._process(flow.request("staging_down", target))
        self._process(flow.request("report"))

    def _stop_stage(self) -> None:
        if self._job is not None and self._runner.is_active(self._job):
            self._runner.cancel(self._job)

    def _fenced(self) -> bool:
        """Whether another release took over, and with it the servers; one that cannot be read did not."""
        try:
            other = self._claim.taken_by_another()
        except Transient as error:
            log.warning("cannot tell who holds the claim on the model: %s", error)
            return False
        if other is not None:
            log.warning("%s took over: its servers are left alone", other)
        return other is not None

    def _gate(self, request: StageRequest) -> StageResult:
        result = self._stage(request)
        if not passed(result) and result.judgement is not None:
            raise Stopped(request.stage, request.subject, result.judgement)
        return result

    def _stage(self, request: StageRequest) -> StageResult:
        """Run one stage, if this release may still go on."""
        self._claim.check(request.release_id if request.stage != "resolve" else "")
        return self._process(request)

    def _process(self, request: StageRequest) -> StageResult:
        """Run one stage's process, again after a transient error; one line when it is done."""
        for attempt in range(1, _ATTEMPTS + 1):
            started = time.monotonic()
            try:
                self._job = self._runner.submit(request, placement(request))
                result = self._wait(self._job, request.stage)
            except Transient as error:
                if attempt == _ATTEMPTS:
                    raise
                log.warning("%s; trying again in %g s", error, _BACK_OFF_SECONDS * attempt)
                time.sleep(_BACK_OFF_SECONDS * attempt)
                continue
            log.info("%s", self._line(result, time.monotonic() - started))
            self._tell(request)
            return result
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _tell(self, request: StageRequest) -> None:
        """Tell people what has become of a canary, where somebody wants to be told."""
        config = self._deployment.notifications
        if config.wanted and request.stage in _TOLD_OF:
            place = self._places[request.subject.partition(":")[0]]
            store = open_store(self._deployment.store)
            notify(store, config, secrets_here(config), request.release_id, place)

    def _wait(self, job: Job, stage: str) -> StageResult:
        offset, relay = 0, LogRelay(logging.getLogger(f"llm_pipeline.stage.{stage}"))
        while True:
            active = self._runner.is_active(job)
            lines, offset = self._runner.read_log(job, offset)
            for line in lines:
                relay.relay(line)
            if not active:
                return self._runner.outcome(job)
            time.sleep(_POLL_SECONDS)

    def _line(self, result: StageResult, seconds: float) -> str:
        elapsed = time.monotonic() - self._started
        name = f"{result.stage} {result.subject}".strip()
        done = str(result.metrics.get("phase", "done")) if result.stage == "rollback" else "done"
        state = "reused" if result.reused else done
        verdict = f"  {result.judgement.verdict}: {result.judgement.summary}" if result.judgement else ""
        return f"{elapsed:7.1f} s  {name:<28} {state:<6} {seconds:6.1f} s{verdict}"


def ask_on_terminal(question: str) -> bool | None:
    """Ask whoever sits at the terminal; None when nobody does."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    sys.stderr.write(f"{one_line(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")

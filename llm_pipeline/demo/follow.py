"""Following a DAG run from the terminal: one line a task, and the human decision answered by the demo itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

from llm_pipeline.base.errors import Transient
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.demo.airflow_client import AirflowClient, TaskState
from llm_pipeline.demo.console import Console
from llm_pipeline.flow import Flow
from llm_pipeline.release.contract import StageResult

_LOOK_SECONDS = 1.0
_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed"})
_WAITS = "up_for_reschedule"
_RUN_ENDED = frozenset({"success", "failed"})
_REASON_CHARACTERS = 400


class FollowedRun:
    """One run of a release's DAG.

    Args:
        client: Logged in to the demo's Airflow.
        deployment: Where the release's results are read from.
        console: Where the lines go.
    """

    def __init__(self, client: AirflowClient, deployment: Deployment, console: Console) -> None:
        self._client = client
        self._deployment = deployment
        self._console = console
        self._told: set[tuple[str, int]] = set()
        self._waiting: set[str] = set()
        self._flow: Flow | None = None

    def trigger(self, dag_id: str, timeout_seconds: float = 240.0) -> str:
        """Start a run as a user of the UI would; returns its id.

        Raises:
            Transient: Airflow has not taken in the DAG in time; the message holds its import errors.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._client.has_dag(dag_id):
            if time.monotonic() > deadline:
                errors = "; ".join(self._client.import_errors().values()) or "no import error"
                raise Transient(f"Airflow has no DAG {dag_id}: {errors}")
            time.sleep(_LOOK_SECONDS)
        self._client.unpause(dag_id)
        return self._client.trigger(dag_id)

    def follow(self, dag_id: str, run_id: str) -> tuple[str, Flow | None]:
        """Say what happens until the run ends; returns its state and its release."""
        while True:
            state = self._client.run_state(dag_id, run_id)
            self._tell_ended_tasks(dag_id, run_id)
            self._answer_approvals(dag_id, run_id)
            if state in _RUN_ENDED:
                return state, self._flow
            time.sleep(_LOOK_SECONDS)

    def _tell_ended_tasks(self, dag_id: str, run_id: str) -> None:
        for task in self._client.task_states(dag_id, run_id):
            identity = (task.task_id, task.map_index)
            if task.state == _WAITS and task.task_id not in self._waiting:
                self._waiting.add(task.task_id)
                self._console.step(f"{task.task_id:<16} waits: another release of this model is on its way")
            if task.state not in _ENDED or identity in self._told:
                continue
            self._told.add(identity)
            if task.task_id == "resolve" and task.state == "success":
                release_id = str(self._client.xcom(dag_id, run_id, "resolve"))
                self._flow = Flow.open(self._deployment, release_id)
            self._console.step(self._line(task))
            if task.state == "failed" and (reason := self._reason(dag_id, run_id, task)):
                self._console.step(f"{'':<29} {reason}")

    def _reason(self, dag_id: str, run_id: str, task: TaskState) -> str:
        """The last error in the log of a task that failed without a verdict; empty for none."""
        name, subject = _stage_of(task)
        result = self._result(name, subject)
        if result and result.judgement:
            return ""
        lines = self._client.task_log(dag_id, run_id, task.task_id, attempt=task.tries, map_index=task.map_index)
        errors = [line for line in lines if line.startswith(("ERROR ", "CRITICAL "))]
        return errors[-1].partition(" ")[2].strip().partition("\n")[0][:_REASON_CHARACTERS] if errors else ""

    def _line(self, task: TaskState) -> str:
        name, subject = _stage_of(task)
        seconds = f"{task.seconds:6.1f} s" if task.seconds is not None else " " * 8
        result = self._result(name, subject)
        outcome = f"  {result.judgement.verdict}: {result.judgement.summary}" if result and result.judgement else ""
        reused = "  (reused)" if result and result.reused else ""
        return f"{name:<16} {subject:<12} {task.state:<16} {seconds}{reused}{outcome}"

    def _result(self, name: str, subject: str) -> StageResult | None:
        if self._flow is None:
            return None
        if name.startswith("canary_"):
            name, subject = "canary", f"{subject}:{name.removeprefix('canary_').replace('_', '.')}"
        return self._flow.find(name, subject)

    def _answer_approvals(self, dag_id: str, run_id: str) -> None:
        for task_id, map_index, _details in self._client.pending_approvals(dag_id, run_id):
            self._console.step(f"{task_id:<16} Airflow waits for a human; the demo answers Approve by its own API call")
            self._client.answer_approval(dag_id, run_id, task_id, map_index=map_index, approve=True)


def _stage_of(task: TaskState) -> tuple[str, str]:
    """The stage of a task, and what it works on: a recipe, a target, or nothing."""
    subject = task.label.partition(" ")[0] if task.map_index >= 0 else ""
    if subject.isdigit():  # a task that never ran has no label but its index
        subject = ""
    return task.task_id.rpartition(".")[2], subject


def verdict_rows(flow: Flow) -> Iterator[list[str]]:
    """Rows of the verdict table: stage, subject, verdict, what was measured."""
    gates = [result for result in flow.results().values() if result.judgement is not None]
    for result in sorted(gates, key=lambda result: result.timings.started_at):
        if result.judgement is not None:
            reused = " (reused)" if result.reused else ""
            yield [result.stage, result.subject, result.judgement.verdict + reused, result.judgement.summary]

"""What the demo does: services, a release through Airflow into live traffic, and one that is rolled back."""

from __future__ import annotations

import logging
import sys
import time

from llm_pipeline.base.errors import ExitCode, Transient
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.demo import services
from llm_pipeline.demo.local_airflow import USERNAME, AirflowAccess, AirflowClient, TaskState, start_airflow
from llm_pipeline.demo.services import DemoLayout
from llm_pipeline.local_run import LocalRun
from llm_pipeline.release.contract import StageResult
from llm_pipeline.release.record import report_name
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.stages.load_test import STAGE
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import Pointer, read_place


class Console(logging.Handler):
    """Writes lines to stdout as they happen; the package's own log records are steps."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def title(self, text: str) -> None:
        """Write a heading."""
        self.line(f"\n{text}\n{'-' * len(text)}")

    def step(self, text: str) -> None:
        """Write what happened, with the time since the start."""
        self.line(f"{time.monotonic() - self._started:7.1f} s  {text}")

    def line(self, text: str = "") -> None:
        """Write a line without the time."""
        self.write(text + "\n")

    def write(self, text: str) -> None:
        """Write a part of a line."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record."""
        self.step(self.format(record))


_LOOK_SECONDS = 1.0
_SECONDS_TO_DAG = 240.0
_ENDED = frozenset({"success", "failed", "skipped", "upstream_failed"})
_RUN_ENDED = frozenset({"success", "failed"})
_REASON_CHARACTERS = 400
_FIRST_RELEASE_TRIES = 3


class FollowedRun:
    """One run of a release's DAG, started as a user of the UI would.

    Args:
        client: Logged in to the demo's Airflow.
        dag_id: The release's DAG.
        deployment: Where the release's results are read from.
        console: Where the lines go.

    Raises:
        Transient: Airflow has not taken in the DAG in time; the message holds its import errors.
    """

    def __init__(self, client: AirflowClient, dag_id: str, deployment: Deployment, console: Console) -> None:
        self._client, self._deployment, self._console = client, deployment, console
        self._printed: set[tuple[str, int]] = set()
        self._flow: ReleaseProgress | None = None
        if not wait_until(lambda: client.has_dag(dag_id), _SECONDS_TO_DAG, every=_LOOK_SECONDS):
            errors = "; ".join(client.import_errors().values()) or "no import error"
            raise Transient(f"Airflow has no DAG {dag_id}: {errors}")
        client.unpause(dag_id)
        self._run = dag_id, client.trigger(dag_id)
        console.step(f"triggered by the REST API: {client.access.url}/dags/{dag_id}/runs/{self._run[1]}")

    def follow(self) -> tuple[str, ReleaseProgress | None]:
        """Print what happens until the run ends; returns its state and its release."""
        while True:
            state = self._client.run_state(*self._run)
            for task in self._client.task_states(*self._run):
                identity = task.task_id, task.map_index
                if task.state in _ENDED and identity not in self._printed:
                    self._printed.add(identity)
                    self._print(task)
            for task_id, map_index in self._client.pending_approvals(*self._run):
                self._console.step(f"{task_id:<16} Airflow waits for a human; the demo answers Approve by its API")
                self._client.answer_approval(*self._run, task_id, map_index=map_index, approve=True)
            if state in _RUN_ENDED:
                return state, self._flow
            time.sleep(_LOOK_SECONDS)

    def _print(self, task: TaskState) -> None:
        """A line of a task that has ended; of one that failed without a verdict, the last error in its log, too."""
        if task.task_id == "resolve" and task.state == "success":
            release_id = str(self._client.xcom(*self._run, "resolve"))
            self._flow = ReleaseProgress.open(self._deployment, release_id)
        name = task.task_id.rpartition(".")[2]
        subject = (task.label or "").partition(" ")[0] if task.map_index >= 0 else ""
        subject = "" if subject.isdigit() else subject  # a task that never ran has no label but its index
        result = self._result(name, subject)
        seconds = f"{task.seconds:6.1f} s" if task.seconds is not None else " " * 8
        line = f"{name:<16} {subject:<12} {task.state:<16} {seconds}{'  (reused)' if result and result.reused else ''}"
        if result and result.judgement:
            line += f"  {result.judgement.verdict}: {result.judgement.summary}"
        self._console.step(line)
        if task.state == "failed" and not (result and result.judgement):
            lines = self._client.task_log(*self._run, task.task_id, attempt=task.tries, map_index=task.map_index)
            if errors := [line for line in lines if line.startswith(("ERROR ", "CRITICAL "))]:
                reason = errors[-1].partition(" ")[2].strip().partition("\n")[0]
                self._console.step(f"{'':<29} {reason[:_REASON_CHARACTERS]}")

    def _result(self, name: str, subject: str) -> StageResult | None:
        if self._flow is None:
            return None
        if name.startswith("canary_"):
            name, subject = "canary", f"{subject}:{name.removeprefix('canary_').replace('_', '.')}"
        return self._flow.find(name, subject)


class Demo:
    """The commands of the demo, on the files and services of one checkout."""

    def __init__(self, layout: DemoLayout, console: Console) -> None:
        self._layout = layout
        self._model = layout.model
        self._console = console
        self._deployment: Deployment = load_yaml(layout.deployment, Deployment)

    def up(self) -> int:
        """Release the demo's model through Airflow; 0 when it ends in production."""
        access = self._start_services()
        state, flow = self._release(access, self._model.release)
        self._print_summary(access, flow)
        return ExitCode.GO if state == "success" else ExitCode.NO_GO

    def rollback(self) -> int:
        """Release a candidate that turns slow in production; 0 when traffic is back and nothing was lost."""
        access = self._start_services()
        before, lost_before = self._production(), services.read_traffic(self._layout).failed
        state, flow = self._release(access, "demo-rollback")
        self._print_summary(access, flow)
        lost = services.read_traffic(self._layout).failed - lost_before
        after = self._production()
        same = before is not None and after is not None and before.repository == after.repository
        production = "what it was" if same else "CHANGED"
        self._console.line(f"The DAG run ended as {state}; production is {production}; requests lost meanwhile: {lost}")
        return ExitCode.GO if state == "failed" and same and lost == 0 else ExitCode.NO_GO

    def down(self) -> int:
        """Stop every process of the demo; what was computed stays."""
        services.stop_everything(self._layout)
        self._console.step("nothing of the demo runs any more")
        return ExitCode.GO

    def _start_services(self) -> AirflowAccess:
        self._console.title("Services")
        self._console.step("Airflow starts on loopback (the first start makes its database)")
        with services.making(self._layout, self._deployment) as finished:  # one core of two, meanwhile
            access = start_airflow(
                self._layout.airflow, self._layout.airflow_port, releases=self._layout.configs / "releases"
            )
            self._console.title("Model")
            made = finished()
        commit = services.start_hub(self._layout, self._deployment)
        age = "made now" if made else "made before"
        self._console.step(f"the local hub serves {self._model.id} ({age}) at commit {commit[:12]}")
        self._ensure_production()
        services.start_traffic(self._layout, self._deployment)
        self._console.step("background traffic goes to production from now on")
        return access

    def _ensure_production(self) -> None:
        """Production runs: what the pointers say, or the unquantized model released now."""
        from llm_pipeline.operations.switching import start_production

        self._console.title("Production before the release")
        production = self._production()
        if production is None:
            self._console.step("nothing is in production: `llm-pipeline run` releases the unquantized model first")
            production = self._first_release()
        else:
            start_production(open_store(self._deployment.store), self._deployment, self._model.place)
        self._console.step(
            f"production is {production.release_id} (recipe {production.recipe}) in slot {production.slot}"
        )

    def _first_release(self) -> Pointer:
        """The unquantized model in production; a load test that decided nothing on a busy machine is measured again.

        Raises:
            Transient: It did not reach production.
        """
        name = f"{self._model.release}-baseline"
        for _ in range(_FIRST_RELEASE_TRIES):
            run = LocalRun(self._layout.release(name), approve=lambda _question: True)
            run.run()
            if (production := self._production()) is not None:
                return production
            tested = [run.flow.find("load_test", target) for target in run.flow.targets] if run.flow else []
            if not any(STAGE.may_decide_again(result.judgement) for result in tested if result is not None):
                break  # anything else would come to the same
            self._console.step("the load test decided nothing; it is measured again")
        problem = "the unquantized model did not reach production; the lines above say what stopped it"
        raise Transient(problem, where=name, hint="run the same command again: what was computed is kept")

    def _release(self, access: AirflowAccess, name: str) -> tuple[str, ReleaseProgress | None]:
        dag_id = f"release__{name}"
        self._console.title(f"Release: the Airflow DAG {dag_id}")
        with AirflowClient(access) as client:
            client.end_releases()  # one that was interrupted, or waits for an approval, would be waited for
            state, flow = FollowedRun(client, dag_id, self._deployment, self._console).follow()
        self._console.step(f"the DAG run ended: {state}")
        return state, flow

    def _print_summary(self, access: AirflowAccess, flow: ReleaseProgress | None) -> None:
        self._console.title("Look around")
        self._console.line(f"You         {self._model.question}")
        self._console.write("Production  ")
        asked = time.monotonic()
        tokens = services.ask(self._deployment, self._model, self._console.write)
        self._console.line(f"\n            ({tokens / (time.monotonic() - asked):.1f} tokens/s)")
        url = services.users_url(self._deployment, self._model)
        self._console.line(f"OpenAI API  {url}/v1  (model {self._model.id})")
        self._console.line(f"Airflow UI  {access.url}  (user {USERNAME}, password {access.password})")
        if flow is not None:
            path = self._deployment.store.directory
            self._console.line(f"Report      {path}/{report_name(flow.record.release_id)}")
        traffic = services.read_traffic(self._layout)
        self._console.line(f"Background traffic so far: {traffic.sent} requests sent, {traffic.failed} lost")
        self._console.line("Everything stays up for a look; `make down` stops it.")

    def _production(self) -> Pointer | None:
        return read_place(open_store(self._deployment.store), self._model.place).production

"""What the demo does: services, a release through Airflow into live traffic, and one that is rolled back."""

from __future__ import annotations

import json

from llm_pipeline.base.errors import ExitCode, Transient
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_deployment
from llm_pipeline.demo import services
from llm_pipeline.demo.airflow_client import AirflowAccess, AirflowClient
from llm_pipeline.demo.airflow_services import start_airflow
from llm_pipeline.demo.console import Console
from llm_pipeline.demo.follow import FollowedRun, verdict_rows
from llm_pipeline.demo.layout import MODEL_ID, TARGET, DemoLayout
from llm_pipeline.flow import Flow
from llm_pipeline.local_run import LocalRun
from llm_pipeline.stages.report import report_name
from llm_pipeline.store import open_store
from llm_pipeline.store.pointers import Pointer, read_pointers

_QUESTION = "7 + 5 ="
_FIRST_RELEASE_TRIES = 3


class Demo:
    """The demo of one checkout."""

    def __init__(self, layout: DemoLayout, console: Console) -> None:
        self._layout = layout
        self._console = console
        self._deployment: Deployment = load_deployment(layout.deployment)

    def up(self) -> int:
        """Release the demo model through Airflow; 0 when it ends in production."""
        access = self._start_services()
        state, flow = self._release(access, "demo")
        self._say_where(access, flow)
        return ExitCode.GO if state == "success" else ExitCode.NO_GO

    def rollback(self) -> int:
        """Release a candidate that turns slow in production; 0 when traffic is back and nothing was lost."""
        access = self._start_services()
        before, lost_before = self._production(), self._traffic()[1]
        state, flow = self._release(access, "demo-rollback")
        self._say_where(access, flow)
        lost = self._traffic()[1] - lost_before
        after = self._production()
        same = before is not None and after is not None and before.repository == after.repository
        production = "what it was" if same else "CHANGED"
        self._console.line(f"The DAG run ended as {state}; production is {production}; requests lost meanwhile: {lost}")
        return ExitCode.GO if state == "failed" and same and lost == 0 else ExitCode.NO_GO

    def down(self) -> int:
        """Stop every process of the demo; what was computed stays."""
        stopped = services.stop_everything(self._layout)
        for name in stopped:
            self._console.step(f"stopped {name}")
        self._console.step("nothing of the demo runs any more" if stopped else "nothing of the demo was running")
        return ExitCode.GO

    def _start_services(self) -> AirflowAccess:
        self._console.title("Services")
        self._console.step("Airflow starts on loopback (the first start makes its database)")
        with services.training(self._layout, self._deployment) as finished:  # one core of two, meanwhile
            access = self._start_airflow()
            self._console.title("Model")
            trained = finished()
        facts = json.loads((self._layout.model / "training.json").read_text())
        said = ", ".join(f"{name} {value}" for name, value in facts.items() if isinstance(value, int | float | str))
        self._console.step(f"{MODEL_ID}: {'trained now' if trained else 'reused, trained before'} ({said})")
        commit = services.start_hub(self._layout, self._deployment)
        self._console.step(f"the local hub serves {MODEL_ID} at commit {commit[:12]}")
        self._ensure_production()
        services.start_traffic(self._layout, self._deployment)
        self._console.step("background traffic goes to production from now on")
        return access

    def _start_airflow(self) -> AirflowAccess:
        return start_airflow(
            self._layout.airflow, self._layout.airflow_port, releases=self._layout.configs / "releases"
        )

    def _ensure_production(self) -> None:
        """Production runs: what the pointers say, or the FP16 model released now."""
        from llm_pipeline.operations.switching import start_production

        self._console.title("Production before the release")
        production = self._production()
        if production is None:
            self._console.step("nothing is in production: `llm-pipeline run` releases the FP16 model first")
            production = self._first_release()
        else:
            start_production(open_store(self._deployment.store), self._deployment, TARGET)
        self._console.step(
            f"production is {production.release_id} (recipe {production.recipe}) in slot {production.slot}"
        )

    def _first_release(self) -> Pointer:
        """The FP16 model in production; a load test that decided nothing on a busy machine is measured again.

        Raises:
            Transient: It did not reach production.
        """
        for _ in range(_FIRST_RELEASE_TRIES):
            verdict = LocalRun(self._layout.release("demo-baseline"), approve=lambda _question: True).run()
            if (production := self._production()) is not None:
                return production
            if verdict not in (Verdict.INCONCLUSIVE, Verdict.ANOMALOUS):
                break
            self._console.step("nothing was decided; what was undecided is measured again")
        raise Transient(
            "the FP16 model did not reach production; what stopped it is told above",
            where="demo-baseline",
            hint="run the same command again: what was computed is kept",
        )

    def _release(self, access: AirflowAccess, name: str) -> tuple[str, Flow | None]:
        dag_id = f"release__{name}"
        self._console.title(f"Release: the Airflow DAG {dag_id}")
        with AirflowClient(access) as client:
            run = FollowedRun(client, self._deployment, self._console)
            run_id = run.trigger(dag_id)
            self._console.step(f"triggered by the REST API: {access.url}/dags/{dag_id}/runs/{run_id}")
            state, flow = run.follow(dag_id, run_id)
        self._console.step(f"the DAG run ended: {state}")
        return state, flow

    def _say_where(self, access: AirflowAccess, flow: Flow | None) -> None:
        if flow is not None:
            self._console.title("Verdicts")
            self._console.table(["gate", "of", "verdict", "why"], list(verdict_rows(flow)))
        self._console.title("Look around")
        answer = services.generate(self._deployment, _QUESTION)
        self._console.line(f"Production answers {_QUESTION!r} with {answer!r}")
        self._console.line(
            f"Endpoint    http://127.0.0.1:{services.router_port(self._deployment)}/v2/models/llm/generate"
        )
        self._console.line(f"Airflow UI  {access.url}  (user {access.username}, password {access.password})")
        if flow is not None:
            path = self._deployment.store.directory
            self._console.line(f"Report      {path}/{report_name(flow.record.release_id)}")
        sent, lost = self._traffic()
        self._console.line(f"Background traffic so far: {sent} requests sent, {lost} lost")
        self._console.line("Everything stays up for a look; `make down` stops it.")

    def _traffic(self) -> tuple[int, int]:
        """Background requests sent and lost so far."""
        record = services.read_traffic(self._layout)
        return int(str(record.get("sent", 0))), int(str(record.get("failed", 0)))

    def _production(self) -> Pointer | None:
        return read_pointers(open_store(self._deployment.store), MODEL_ID, TARGET)[0].production

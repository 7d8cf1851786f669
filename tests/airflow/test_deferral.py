"""A stage in a container or a pod holds no worker: its task is deferred, and finds it again whatever happens."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import TaskDeferred
from waiting import until

from llm_pipeline.adapters.local.adapter import ContainerEnvironment
from llm_pipeline.base.errors import RemoteStageTransient, Transient
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.release import time_limit
from llm_pipeline.release.contract import StageRequest, TimeLimit
from llm_pipeline.release.loading import load_release
from llm_pipeline.runners.runner import Job, Runners

pytestmark = pytest.mark.slow

SUBJECT = "one"


class StateStore(dict):
    """Airflow's task state store, as far as the mixin uses it: it outlives a try."""

    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


def put(project, environment: dict[str, Any]) -> None:
    """Let the deployment's stages run in containers or pods."""
    path = project.root / "configs/deployments/here.yaml"
    deployment = yaml.safe_load(path.read_text())
    deployment["environments"]["control"] = environment
    path.write_text(yaml.safe_dump(deployment))


def put_in_pods(project) -> None:
    claim = {"claim": "shared", "path": str(project.root), "writable": True}
    python = str(project.root / "python")
    put(project, {"runner": "kubernetes", "namespace": "llm", "image": "model:1", "python": python, "claims": [claim]})


def put_in_containers(project, engine) -> None:
    put(project, engine.environment(str(project.root / "python"), project.root))


@pytest.fixture(params=["engine", "cluster"])
def place(request, project):
    """A container engine, or the double of a cluster, in which stages run."""
    there = request.getfixturevalue(request.param)
    put_in_pods(project) if request.param == "cluster" else put_in_containers(project, there)
    return there


@dataclass
class Task:
    """One task of Airflow's, whose stage runs until it may end.

    Attributes:
        operator: Makes a new operator object, as every start of the task has one.
        context: What outlives its starts.
    """

    project: Any
    operator: Any
    context: dict[str, Any] = field(
        default_factory=lambda: {
            "task_state_store": StateStore(),
            "ti": SimpleNamespace(map_index=-1, start_date=datetime.now(UTC), stats_tags={}),
        }
    )

    def execute(self, **options: Any) -> Any:
        return self.operator(**options).execute(self.context)

    def deferred(self, **options: Any) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as caught:
            self.execute(**options)
        return caught.value

    def resume(self, deferral: TaskDeferred, event: dict[str, str]) -> Any:
        return self.operator().resume_execution("resume", {**deferral.kwargs, "event": event}, self.context)

    def give_up(self, error: str) -> Any:
        """Resume as after a trigger that failed, or that fired nothing in time."""
        return self.operator().resume_execution("__fail__", {"error": error, "traceback": ["a line"]}, self.context)

    def end(self) -> None:
        """Let the stage end."""
        (self.project.root / "end").touch()

    def starts(self) -> int:
        """How often the stage was started."""
        marker = self.project.root / "started"
        return len(marker.read_text().splitlines()) if marker.exists() else 0

    def runs(self, deferral: TaskDeferred) -> bool:
        return self.runners().is_active(job_of(deferral))

    def runners(self) -> Runners:
        return Runners(load_yaml(self.project.root / "configs/deployments/here.yaml", Deployment))


@pytest.fixture
def task(project, monkeypatch) -> Task:
    from llm_pipeline_airflow import job_trigger, operators

    monkeypatch.setattr(operators, "_SECONDS_BEFORE_DEFERRAL", 0.0)
    monkeypatch.setattr(job_trigger, "SHORTEST_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(job_trigger, "_PATIENCE_AT_FIRST_SECONDS", 0.0)
    job_trigger._open.cache_clear()
    project.script(**{f"report/{SUBJECT}": {"until": f"{project.root}/end", "file": f"{project.root}/started"}})

    class ReportOperator(operators.StageOperator):
        limit = TimeLimit()

        def request(self, context):  # noqa: ARG002
            deployment = load_release(Path(self.config_path)).deployment
            place = {"store": deployment.store, "work_root": deployment.work_root}
            names = {"release_id": "tiny-01234567-00000000", "stage": "report", "subject": SUBJECT}
            return StageRequest(**names, config={}, time_limit=self.limit, **place)

    def new(**options: Any) -> ReportOperator:
        names = {"task_id": "report", "stage": "report", "subject": SUBJECT, "config_path": str(project.config)}
        return ReportOperator(**names, **options)

    return Task(project, new)


def another(trigger):
    """The trigger as another process makes it from what Airflow keeps."""
    from llm_pipeline_airflow.job_trigger import JobTrigger

    name, arguments = trigger.serialize()
    assert name == f"{JobTrigger.__module__}.{JobTrigger.__qualname__}"
    return JobTrigger(**json.loads(json.dumps(arguments)))


def woken(trigger, seconds: float = 60.0) -> dict[str, str]:
    """What a triggerer tells the task when the trigger has fired."""

    async def fired() -> dict[str, str]:
        async for event in another(trigger).run():
            return json.loads(json.dumps(event.payload))
        raise AssertionError("the trigger fired no event")

    return asyncio.run(asyncio.wait_for(fired(), seconds))


def job_of(deferral: TaskDeferred) -> Job:
    return Job.model_validate(deferral.kwargs["job"])


def test_a_task_waits_in_the_triggerer_which_relays_the_log_and_resumes_with_the_result(place, task, caplog):
    caplog.set_level("INFO")
    waiting = task.deferred()
    with ThreadPoolExecutor(1) as triggerer:
        event = triggerer.submit(woken, waiting.trigger)
        until(lambda: "a warning of the stage" in caplog.text)
        assert not event.done()
        task.end()
    assert (event.result()["problem"], event.result()["overdue"]) == ("", "")
    assert task.resume(waiting, event.result())["metrics"] == {"bytes": 1003}
    assert caplog.text.count("a warning of the stage") == 1, "by the trigger or the task, not by both"
    assert task.starts() == 1
    assert not task.context["task_state_store"]


def test_a_try_after_a_killed_worker_defers_with_the_same_job(place, task):
    first, second = task.deferred(), task.deferred()
    assert job_of(first) == job_of(second)
    task.end()
    woken(second.trigger)
    assert task.execute()["metrics"] == {"bytes": 1003}, "also if the worker that was woken was killed"
    assert task.starts() == 1


class WorkerDied(BaseException):
    """What no `except` of a task catches."""


def test_a_try_after_a_worker_killed_before_it_noted_the_job_follows_the_same_pod(cluster, task, monkeypatch):
    put_in_pods(task.project)

    def die(*_):
        raise WorkerDied

    with monkeypatch.context() as dying:
        dying.setattr(StateStore, "set", die)
        with pytest.raises(WorkerDied):
            task.execute()
    (pod,) = cluster.names()
    second = task.deferred()
    task.end()
    woken(second.trigger)
    assert task.execute()["metrics"] == {"bytes": 1003}
    assert (cluster.names(), task.starts()) == ([pod], 1)


def test_a_try_after_an_engine_that_did_not_tell_the_outcome_asks_for_it_again_and_starts_nothing(task, monkeypatch):
    away, told = [Transient("the engine does not answer")], Runners.outcome

    def outcome(runners: Runners, job: Job) -> Any:
        if away:
            raise away.pop()
        return told(runners, job)

    monkeypatch.setattr(Runners, "outcome", outcome)
    task.end()
    with pytest.raises(Transient, match="does not answer"):
        task.execute()
    assert task.execute()["metrics"] == {"bytes": 1003}
    assert task.starts() == 1
    assert not task.context["task_state_store"], "a cleared task runs its stage again"


@pytest.mark.parametrize("state", ["deferred", "failed", None])
def test_a_killed_task_takes_its_job_with_it_and_one_that_still_waits_does_not(place, task, monkeypatch, state):
    from llm_pipeline_airflow.job_trigger import RuntimeTaskInstance

    waiting = task.deferred()
    until(task.starts)
    states = {} if state is None else {"run": {"report": state}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)
    trigger = another(waiting.trigger)
    trigger.task_instance = SimpleNamespace(dag_id="dag", task_id="report", run_id="run", map_index=-1)
    asyncio.run(trigger.on_kill())
    assert task.runs(waiting) is (state == "deferred")
    task.end()


@pytest.mark.parametrize("error", ["Trigger timeout", "Trigger failure"])
def test_a_stage_whose_end_no_triggerer_told_is_followed_by_a_worker(place, task, error):
    assert task.deferred().timeout >= timedelta(hours=24)
    assert task.deferred(execution_timeout=timedelta(seconds=30)).timeout <= timedelta(seconds=30)
    until(task.starts)
    task.end()
    assert task.give_up(error)["metrics"] == {"bytes": 1003}
    assert task.starts() == 1


def test_a_stage_that_hangs_is_stopped_by_the_triggerer(cluster, task, monkeypatch):
    put_in_pods(task.project)
    task.project.script(**{f"report/{SUBJECT}": {"hang": True}})
    monkeypatch.setattr(time_limit, "GRACE_SECONDS", 0.1)
    first = task.operator()
    first.limit = TimeLimit(seconds=3.0)
    with pytest.raises(TaskDeferred) as caught:
        first.execute(task.context)
    waiting = caught.value
    event = woken(waiting.trigger, 300.0)  # a pod whose log the worker has not read yet has its minutes to start
    with pytest.raises(RemoteStageTransient, match="StageOutOfTime: the stage was stopped after its time limit of 3"):
        task.resume(waiting, event)
    assert not task.runs(waiting)


def watchable(monkeypatch, environment, *, executor="CeleryExecutor", queues="False", engine="") -> bool:
    from llm_pipeline_airflow.job_trigger import may_be_watched

    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setenv("AIRFLOW__TRIGGERER__QUEUES_ENABLED", queues)
    monkeypatch.setenv("DOCKER_HOST", engine) if engine else monkeypatch.delenv("DOCKER_HOST", raising=False)
    deployment = SimpleNamespace(environments={"control": environment})
    return may_be_watched(deployment, Job(environment="control", directory=Path("/"), request_digest=""))


def test_a_task_waits_where_a_triggerer_can_see_its_container(monkeypatch):
    docker, podman = (ContainerEnvironment(runner=runner, image="model:1") for runner in ("docker", "podman"))
    assert not watchable(monkeypatch, docker)
    assert watchable(monkeypatch, docker, executor="LocalExecutor")
    assert watchable(monkeypatch, docker, queues="True")
    assert watchable(monkeypatch, docker, engine="tcp://10.0.0.7:2376")
    assert not watchable(monkeypatch, podman, engine="tcp://10.0.0.7:2376")


def test_a_stage_of_this_host_keeps_its_worker(task):
    task.end()
    assert task.execute()["metrics"] == {"bytes": 1003}


def test_a_task_that_tells_people_while_its_stage_runs_keeps_its_worker(engine, task):
    from llm_pipeline_airflow.promotion import NotifyingOperator

    assert NotifyingOperator(task_id="canary", stage="canary", config_path="").stays
    put_in_containers(task.project, engine)
    staying = task.operator()
    staying.stays = True
    looks = []

    def attend() -> None:
        looks.append(1)
        if len(looks) == 3:
            task.end()

    staying.attend = attend
    assert staying.execute(task.context)["metrics"] == {"bytes": 1003}


def test_the_triggerer_of_a_task_is_that_of_its_own_queue(engine, task):
    put_in_containers(task.project, engine)
    table = [{"queue": "on-a"}, {"queue": "on-b", "pool": "gpus"}]
    mapped = task.operator(executor_config={"llm_pipeline": table})
    task.context["ti"].map_index = 1
    with pytest.raises(TaskDeferred):
        mapped.execute(task.context)
    assert mapped.queue == "on-b"
    task.end()

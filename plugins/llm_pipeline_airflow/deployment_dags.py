"""The DAGs of each deployment that a release config names: guard, rollback form, verification and retention.

A config that is broken is left out here; `dags/release_config_errors.py` is where it shows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.exceptions import AirflowSkipException

from llm_pipeline.base.errors import ExitCode, StageCrashed
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.canary.record import Phase, latest_canary
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import each_file_read_once
from llm_pipeline.notifications.telling import Event, Origin, tell_canary, verified
from llm_pipeline.release.loading import LoadedRelease, load_release
from llm_pipeline.runners.stage_environment import command_environment
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import read_place
from llm_pipeline_airflow.assets import ROLLBACKS, tell_rollback
from llm_pipeline_airflow.connections import deployment_with_secrets
from llm_pipeline_airflow.dag_options import cron_timetable, dag_tags, documentation
from llm_pipeline_airflow.faults import contained, get_logger
from llm_pipeline_airflow.placement import placement_of_targets
from llm_pipeline_airflow.settings import release_configs
from llm_pipeline_airflow.task_endings import Happened, Refused, refused, task_defaults

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)

_LONGEST_GUARD_RUN = timedelta(minutes=15)
"""A host that is gone must not keep the guard from the others: one run at a time, and this one ends."""

_RELEASE = r"^([a-z0-9][a-z0-9_.-]{0,127})?$"


@dataclass(frozen=True)
class UsedDeployment:
    """A deployment and what its release configs put there.

    Attributes:
        path: Its file.
        models: Ids of the models, sorted.
        targets: Names of the places that their targets go to, in the order of the deployment.
        engines: The engines of those targets, sorted.
    """

    path: Path
    deployment: Deployment
    models: tuple[str, ...]
    targets: tuple[str, ...]
    engines: tuple[str, ...] = ()


@each_file_read_once()
def used_deployments(folders: tuple[Path, ...]) -> list[UsedDeployment]:
    """The deployments of all release configs that are right; mistakes are reported by `check_release_configs`."""
    found: dict[Path, list[LoadedRelease]] = {}
    for config in release_configs(folders):
        with contained(config.name):
            loaded = load_release(config)
            found.setdefault(loaded.file_of("deployments", loaded.deployment.name), []).append(loaded)
    used = []
    for file, releases in found.items():
        deployment, places = releases[0].deployment, {place for one in releases for place in one.places.values()}
        used.append(
            UsedDeployment(
                path=file,
                deployment=deployment,
                models=tuple(sorted({one.config.model.id for one in releases})),
                targets=tuple(name for name in deployment.places if name in places),
                engines=tuple(sorted({target.engine for one in releases for target in one.release.targets})),
            )
        )
    return used


class FoundWrong(Refused):
    """The command worked, and what it looked at is not as it should be: trying again finds the same."""


class CommandOperator(BaseOperator):
    """Runs a command as a process of its own, relays what it says, and then tells people what it did.

    Args:
        deployment_file: The deployment's file.
        subject: The target's name; empty for a command about the whole deployment.
    """

    ui_color = "#f9d9d9"
    arguments: tuple[str, ...] = ()
    """The command and its arguments before the target's name."""

    def __init__(self, *, deployment_file: str, subject: str = "", **kwargs: Any) -> None:
        super().__init__(outlets=[ROLLBACKS] if subject else [], **kwargs)
        self.deployment_file = deployment_file
        self.subject = subject
        self._process: subprocess.Popen[str] | None = None
        self._last_line = ""

    def command(self, context: Context) -> Sequence[str]:  # noqa: ARG002 - the same every time
        """The command and its arguments, without the deployment; it shows in the process list.

        Raises:
            AirflowSkipException: There is nothing to do for this target.
        """
        return [*self.arguments, self.subject]

    def execute(self, context: Context) -> None:
        """Run it.

        Raises:
            Refused: The command refuses what it was asked.
            FoundWrong: It found something wrong, and says what in its last line.
            StageCrashed: It failed, and may work when it is tried again.
        """
        command = self.command(context)
        deployment = deployment_with_secrets(self.deployment_file)
        store = open_store(deployment.store)
        before = self.subject and _rolled_back(store, self.subject)
        arguments = ("-m", "llm_pipeline", *command, "--deployment", self.deployment_file)
        code = self._run([_python(deployment), *arguments], command_environment(deployment))
        if self.subject:
            tell_canary(deployment, self.subject)
            if _rolled_back(store, self.subject) != before:
                tell_rollback(context, deployment, store, self.subject)
        what = f"{command[0]} {self.subject}".strip()
        if code == ExitCode.BAD_INPUT:
            raise refused(context, f"{what} was refused; see its log")
        if code == ExitCode.NO_GO:
            raise FoundWrong(self._last_line)
        if code:
            raise StageCrashed(f"{what} ended with exit code {code}: see its log")

    def on_kill(self) -> None:
        """Stop the command: each of its steps is safe to be done again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def _run(self, command: list[str], environment: dict[str, str]) -> int:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        ) as self._process:
            relay = LogRelay(log)
            for line in self._process.stdout or ():
                relay.relay(line)
                self._last_line = line.strip() or self._last_line
        return self._process.returncode


def _rolled_back(store: ArtifactStore, place: str) -> tuple[object, ...]:
    """What changes with each rollback at a place."""
    state, canary = read_place(store, place), latest_canary(store, place)
    ended = canary is not None and canary.phase is Phase.ROLLED_BACK
    return state.way_back, state.taken_back, (canary.release_id, canary.run) if canary is not None and ended else None


def _python(deployment: Deployment) -> str:
    """The control environment's interpreter where it is one of this host; else Airflow's own, which has the package."""
    control = deployment.environments.get("control")
    return (control.interpreter_here() if control is not None else None) or sys.executable


class GuardOperator(CommandOperator):
    """Guards one target; alerts know its tasks by its name."""

    arguments = ("guard", "--target")


class RollBackOperator(CommandOperator):
    """Leaves a release on the target that the form names; other targets are skipped."""

    def command(self, context: Context) -> Sequence[str]:
        form, run = context["params"], context["dag_run"]
        if form["target"] != self.subject:
            raise AirflowSkipException(f"{self.subject} was not asked for")
        by = getattr(run, "triggering_user_name", None) or f"run {run.run_id}"
        command = ["rollback", form["model"], self.subject, f"--reason={form['reason']}", f"--by={by}"]
        return [*command, f"--from={form['release']}"] if form["release"] else command


def _rollback_form(used: UsedDeployment) -> dict[str, Param]:
    return {
        "model": _choice(used.models, title="Model"),
        "target": _choice(used.targets, title="Target"),
        "release": Param(
            None,
            type=["null", "string"],
            pattern=_RELEASE,
            title="Release to roll back",
            description="Its id, or the beginning of it. Empty: what is on trial, or else what serves, unless it "
            "serves because another release was rolled back.",
        ),
        "reason": Param(
            type="string", minLength=3, maxLength=200, title="Reason", description="Kept with what was done."
        ),
    }


def _choice(names: tuple[str, ...], *, title: str) -> Param:
    """One of these names; the only one is chosen already."""
    if len(names) == 1:
        return Param(names[0], type="string", enum=list(names), title=title)
    return Param(type="string", enum=list(names), title=title)


class VerifyOperator(CommandOperator):
    """Verifies what serves on one target."""

    arguments = ("verify", "--place")

    def events_of(self, origin: Origin, happened: Happened, context: Context) -> tuple[Event, ...] | None:  # noqa: ARG002
        """What it found; see `ReleaseNotifier`."""
        found = context.get("exception")
        return (verified(origin, self.subject, str(found)),) if isinstance(found, FoundWrong) else None


class RetentionOperator(CommandOperator):
    """Runs the retention of a deployment; the parameter `delete` lets it remove things."""

    def command(self, context: Context) -> Sequence[str]:
        return ["gc", "--delete"] if context["params"]["delete"] else ["gc"]


def _retention_form(used: UsedDeployment) -> dict[str, Param]:
    words = "Really remove what is of no use; otherwise only say what would go."
    return {"delete": Param(used.deployment.retention.delete, type="boolean", title="Delete", description=words)}


@dataclass(frozen=True)
class Kind:
    """A kind of DAG that every deployment has one of.

    Attributes:
        operator: Does its work, on each target unless it is the retention.
        task: Id of its task.
        title: Of the DAG.
        description: Of the DAG.
        log: What its task's log has.
        schedule: The deployment's field that says when it runs; empty for never by itself.
        params: The form that starts it.
        longest: How long a run may take; None for no limit.
        task_options: Further arguments of the task.
    """

    operator: type[CommandOperator]
    task: str
    title: str
    description: str
    log: str
    schedule: str = ""
    params: Callable[[UsedDeployment], dict[str, Param]] = lambda _used: {}
    longest: timedelta | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)


KINDS = {
    "guard": Kind(
        GuardOperator,
        task="guard",
        title="Guard",
        description="Rolls back canaries whose controller is gone",
        log="The log has one line for each thing that it did, or `nothing to do`.",
        schedule="guard_schedule",
        longest=_LONGEST_GUARD_RUN,
        task_options={"retries": 0},  # the next run is a minute away
    ),
    "rollback": Kind(
        RollBackOperator,
        task="roll_back",
        title="Rollback",
        description="Rolls back a release on trial or in production, at a person's request",
        log="The last line of the log says what serves.",
        params=_rollback_form,
    ),
    "verify": Kind(
        VerifyOperator,
        task="verify",
        title="Verification",
        description="Checks what serves against what was released",
        log="The log has one line for each thing that was checked; the last line says what is wrong.",
        schedule="verification_schedule",
        task_options={"priority_weight": 1},
    ),
    "retention": Kind(
        RetentionOperator,
        task="collect",
        title="Retention",
        description="Removes what nobody needs any more from the store",
        log="The table in the log says what is kept, what goes, why, and how much it is.",
        schedule="retention.schedule",
        params=_retention_form,
    ),
}
"""A DAG's id is `<kind>__<deployment>`."""


def deployment_dag(kind: str, used: UsedDeployment) -> DAG:
    """The DAG of a kind for one deployment, of which one run is active at a time.

    Raises:
        ConfigError: The deployment's schedule for it is none.
    """
    of, deployment, name = KINDS[kind], used.deployment, used.deployment.name
    cron = attrgetter(of.schedule)(deployment) if of.schedule else None
    rules = {"name": name, "file": used.path.name, "rules": deployment.retention}
    dag = DAG(
        dag_id=f"{kind}__{name}",
        dag_display_name=f"{of.title} of {name}",
        description=of.description,
        doc_md=documentation(kind, **rules),
        schedule=cron_timetable(cron, key=of.schedule, where=str(used.path)),
        params=of.params(used),
        dagrun_timeout=of.longest,
        default_args=task_defaults(deployment.owner),
        catchup=False,
        auto_register=False,  # a DAG file names its own: the check of all of them must add none
        max_active_runs=1,
        tags=dag_tags(kind, name, models=used.models, targets=used.targets, engines=used.engines),
    )
    shown = {"task_id": of.task, "task_display_name": of.task.replace("_", " ").capitalize(), "doc_md": of.log}
    with dag:
        if of.operator is RetentionOperator:
            RetentionOperator(deployment_file=str(used.path), **shown)
            return dag
        urgent = {"priority_weight": 1000, "weight_rule": "absolute"}  # it does not wait behind a queue of stages
        of.operator.partial(
            map_index_template="{{ task.subject }}",
            deployment_file=str(used.path),
            **shown,
            **{**urgent, **of.task_options},
            **placement_of_targets(deployment, used.targets),  # where its servers are
        ).expand(subject=list(used.targets))
    return dag

"""The DAGs of each deployment that a release config names: guard, rollback form, verification and retention.

A config that is broken is left out here, as in `discovery`; `dags/release_config_errors.py` is where it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, CronTriggerTimetable, Param, get_parsing_context
from airflow.sdk.exceptions import AirflowSkipException

from llm_pipeline.base.logging import Lines
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import each_file_read_once
from llm_pipeline.notifications.event import verified
from llm_pipeline.release.loading import load_release
from llm_pipeline_airflow.command import CommandOperator, FoundWrong
from llm_pipeline_airflow.connections import deployment_with_secrets
from llm_pipeline_airflow.dag_options import cron_timetable, dag_tags, task_defaults
from llm_pipeline_airflow.faults import contained
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.placement import placement_of_targets
from llm_pipeline_airflow.settings import release_configs

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.notifications.event import Event, Origin
    from llm_pipeline_airflow.notifications import Happened

log = get_logger(__name__)

_LONGEST_GUARD_RUN = timedelta(minutes=15)
"""A host that is gone must not keep the guard from the others: one run at a time, and this one ends."""

_RELEASE = r"^([a-z0-9][a-z0-9_.-]{0,127})?$"

_GUARD = """### Guard of {name}

The watchdog. On each target it rolls back a canary whose controller is gone, that waited too long for a person, or that
a person denied. A canary with a live controller is left alone.

It also completes a rollback that was begun, starts a router or a production server that has ended, stops the previous
version when its rollback window ends, and sends notifications that are still due. It compares no clocks of two hosts: a
canary counts as silent from when the guard finds nothing new of it. If the store accepts no writes, it moves nothing
and fails.

By hand: `llm-pipeline guard`. `guard_schedule` in `{file}` says when; its time limits are in the policy's `canary`.
**Keep it unpaused**: without it, traffic stays on a canary whose worker has died until somebody looks.
"""

_ROLLBACK = """### Rollback of {name}

Trigger it when a release does harm.

- A release that is **on trial** gives all its traffic back to the version that serves; its canary ends.
- A release that **serves** is replaced by the one before it. Within the rollback window that one's server is warm, and
  this takes seconds.

It needs no metrics and no approval. Triggering it twice is safe, and a release that was rolled back does not return by
itself. If a canary has just ended in a rollback, name the release in production to leave it. The last line of the log
says what serves.

By hand: `llm-pipeline rollback MODEL TARGET [--from RELEASE]`.
"""

_VERIFY = """### Verification of {name}

Checks what serves, on each target, against what was released. It reads every byte of the model repositories of
production and of the version before, with what they link to, against manifests and signatures; each server that runs
must state its release's digest and give its golden answers; pointers, router and servers must fit together.

It changes nothing. What it finds fails its task with one message, and is an event `verification`.

By hand: `llm-pipeline verify`. Its schedule is `verification_schedule:` in `{file}`.
"""

_RETENTION = """### Retention of {name}

Keeps what serves production, what served before, every running release, the newest **{rules.keep_releases}** releases
of each config and all that was used in the last **{rules.keep_days:g} days**. The rest is removed. Without *delete*, a
run only says what it would remove.

By hand: `llm-pipeline gc`, `llm-pipeline gc --delete`. The rules are `retention:` in `{file}`.
"""


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
    found: dict[Path, Deployment] = {}
    models: dict[Path, set[str]] = {}
    targets: dict[Path, set[str]] = {}
    engines: dict[Path, set[str]] = {}
    for config in release_configs(folders):
        with contained(config.name):
            loaded = load_release(config)
            file = loaded.file_of("deployments", loaded.deployment.name)
            found.setdefault(file, loaded.deployment)
            models.setdefault(file, set()).add(loaded.config.model.id)
            targets.setdefault(file, set()).update(loaded.places.values())
            engines.setdefault(file, set()).update(target.engine for target in loaded.release.targets)
    return [
        UsedDeployment(
            path=file,
            deployment=deployment,
            models=tuple(sorted(models[file])),
            targets=tuple(name for name in deployment.places if name in targets[file]),
            engines=tuple(sorted(engines[file])),
        )
        for file, deployment in found.items()
    ]


def deployment_dags(make: Callable[[UsedDeployment], DAG], prefix: str, folders: tuple[Path, ...]) -> dict[str, DAG]:
    """A DAG for each deployment that one can be made for, by DAG id; a worker makes only the one it runs.

    Args:
        make: Makes the DAG of one deployment.
        prefix: What their DAG ids begin with.
        folders: Where the release configs are; of two deployments of one name, the first counts.
    """
    wanted = get_parsing_context().dag_id
    if wanted is not None and not wanted.startswith(prefix):
        return {}
    made: dict[str, DAG] = {}
    for used in used_deployments(folders):
        dag_id = f"{prefix}{used.deployment.name}"
        if wanted in (None, dag_id) and dag_id not in made:
            with contained(dag_id):
                made[dag_id] = make(used)
    return made


class GuardOperator(CommandOperator):
    """Guards one target."""

    def command(self, context: Context) -> Sequence[str]:  # noqa: ARG002 - the same every time
        return ("guard", "--target", self.subject)


def guard_dag(used: UsedDeployment) -> DAG:
    """The guard of one deployment."""
    name = used.deployment.name
    dag = _dag(
        "guard",
        used,
        description="Rolls back canaries whose controller is gone",
        doc_md=_GUARD.format(name=name, file=used.path.name),
        schedule=_schedule(used, "guard_schedule", used.deployment.guard_schedule),
        dagrun_timeout=_LONGEST_GUARD_RUN,
        default_args=task_defaults(used.deployment.owner) | {"retries": 0},  # the next run is a minute away
    )
    with dag:
        _on_each_target(
            used,
            GuardOperator,
            task_id="guard",
            task_display_name="Guard",
            doc_md="The log has one line for each thing that it did, or `nothing to do`.",
        )
    return dag


class RollBackOperator(CommandOperator):
    """Leaves a release on the target that the form names; other targets are skipped."""

    def command(self, context: Context) -> Sequence[str]:
        form = context["params"]
        if form["target"] != self.subject:
            raise AirflowSkipException(f"{self.subject} was not asked for")
        command = ["rollback", form["model"], self.subject, f"--reason={form['reason']}", f"--by={_asker(context)}"]
        return [*command, f"--from={form['release']}"] if form["release"] else command


def rollback_dag(used: UsedDeployment) -> DAG:
    """The rollback of one deployment."""
    dag = _dag(
        "rollback",
        used,
        description="Rolls back a release on trial or in production, at a person's request",
        doc_md=_ROLLBACK.format(name=used.deployment.name),
        schedule=None,
        params=_form(used),
    )
    with dag:
        _on_each_target(
            used,
            RollBackOperator,
            task_id="roll_back",
            task_display_name="Roll back",
            doc_md="The last line of the log says what serves.",
        )
    return dag


def _form(used: UsedDeployment) -> dict[str, Param]:
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


def _asker(context: Context) -> str:
    run: Any = context["dag_run"]
    return str(getattr(run, "triggering_user_name", None) or f"run {run.run_id}")


class VerifyOperator(CommandOperator):
    """Verifies what serves on one target."""

    def command(self, context: Context) -> Sequence[str]:  # noqa: ARG002 - the same every time
        return ("verify", "--place", self.subject)

    def events_of(self, origin: Origin, happened: Happened, context: Context) -> tuple[Event, ...] | None:  # noqa: ARG002
        """What it found; see `TellingOperator`."""
        found = context.get("exception")
        return (verified(origin, self.subject, str(found)),) if isinstance(found, FoundWrong) else None


def verify_dag(used: UsedDeployment) -> DAG:
    """The verification of one deployment."""
    dag = _dag(
        "verify",
        used,
        title="Verification",
        description="Checks what serves against what was released",
        doc_md=_VERIFY.format(name=used.deployment.name, file=used.path.name),
        schedule=_schedule(used, "verification_schedule", used.deployment.verification_schedule),
    )
    with dag:
        _on_each_target(
            used,
            VerifyOperator,
            task_id="verify",
            task_display_name="Verify",
            doc_md="The log has one line for each thing that was checked; the last line says what is wrong.",
            urgent=False,
        )
    return dag


class RetentionOperator(BaseOperator):
    """Runs the retention of a deployment and logs its report; the parameter `delete` lets it remove things.

    Args:
        deployment_file: The deployment's file.
    """

    def __init__(self, *, deployment_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deployment_file = deployment_file

    def execute(self, context: Context) -> dict[str, int]:
        """Collect; returns the bytes that were, or would be, removed."""
        from llm_pipeline.retention import collect_garbage

        deployment = deployment_with_secrets(self.deployment_file)
        report = collect_garbage(deployment, delete=bool(context["params"]["delete"]))
        log.info("%s", Lines("\n".join(["", *report.lines()])))  # one record: the table's lines stay together
        return {"bytes_removed": report.bytes_removed}


def retention_dag(used: UsedDeployment) -> DAG:
    """The retention of one deployment."""
    path, deployment = used.path, used.deployment
    rules = deployment.retention
    dag = _dag(
        "retention",
        used,
        description=f"Removes what nobody needs any more from {deployment.store.uri}",
        doc_md=_RETENTION.format(name=deployment.name, rules=rules, file=path.name),
        schedule=_schedule(used, "retention.schedule", rules.schedule),
        params={
            "delete": Param(
                rules.delete,
                type="boolean",
                title="Delete",
                description="Really remove what is of no use; otherwise only say what would go.",
            )
        },
    )
    with dag:
        RetentionOperator(
            task_id="collect",
            task_display_name="Collect",
            doc_md="The table in the log says what is kept, what goes, why, and how much it is.",
            deployment_file=str(path),
        )
    return dag


def _dag(kind: str, used: UsedDeployment, title: str = "", **options: Any) -> DAG:
    """A DAG of one deployment, of which one run is active at a time."""
    name = used.deployment.name
    shared: dict[str, Any] = {"default_args": task_defaults(used.deployment.owner)}
    return DAG(  # noqa: AIR002 - each says in its options when it runs
        dag_id=f"{kind}__{name}",
        dag_display_name=f"{title or kind.capitalize()} of {name}",
        catchup=False,
        auto_register=False,  # a DAG file names its own: the check of all of them must add none
        max_active_runs=1,
        tags=dag_tags(kind, name, models=used.models, targets=used.targets, engines=used.engines),
        **shared | options,
    )


def _schedule(used: UsedDeployment, key: str, cron: str | None) -> CronTriggerTimetable | None:
    return cron_timetable(cron, key=key, where=str(used.path))


def _on_each_target(
    used: UsedDeployment, operator: type[CommandOperator], *, urgent: bool = True, **options: Any
) -> None:
    """A command for each target, where its servers are; an urgent one does not wait behind a queue of stages."""
    operator.partial(
        map_index_template="{{ task.subject }}",
        deployment_file=str(used.path),
        priority_weight=1000 if urgent else 1,
        weight_rule="absolute",
        **options,
        **placement_of_targets(used.deployment, used.targets),
    ).expand(subject=list(used.targets))


guard_dags = partial(deployment_dags, guard_dag, "guard__")
rollback_dags = partial(deployment_dags, rollback_dag, "rollback__")
verify_dags = partial(deployment_dags, verify_dag, "verify__")
retention_dags = partial(deployment_dags, retention_dag, "retention__")
"""The DAGs of each kind by DAG id, which is `<kind>__<deployment>`; they take the folders of the release configs."""

"""One DAG for each release config.

    claim -> resolve -> review_license -> eval_data -> download -> baseline -> baseline_gate
      -> recipes_1[quantize -> accuracy] -> recipes_2[...] ...
      -> targets[choose -> build -> package -> staging -> served_accuracy -> load_test -> staging_down]
      -> approve -> promotion_1[canary_5 -> ... -> canary_100 -> settle, rollback] -> promotion_2[...] ...
      -> report -> give_back

Groups in brackets are mapped, over recipes or targets. A failed index stops only itself. Recipes are the rungs of a
ladder, one group each, the cheapest first: the next one begins when the one before has ended, however it did, and
skips itself when nothing needs it any more. `strategy: every` tries them side by side, in one group `recipes`.
Targets are promoted one after the other, in the order of the config, one group each: the first promotion that fails
stops those after it.

The run fails when no recipe passed, or when any target was not promoted, because `settle` is the only kind of leaf that
counts: `staging_down`, `rollback`, `report` and `give_back` are teardowns, which always run and never hide a failure.
`claim` is the setup of `give_back`: whatever is cleared, the run takes its turn among the model's releases again, and
gives it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, Param, TaskGroup, TriggerRule, chain, task_group

from llm_pipeline.config.loading import LoadedRelease, load_release
from llm_pipeline.config.release import ModelSource
from llm_pipeline.planning.ladder import climbing_order
from llm_pipeline_airflow.approvals import LicenseReviewOperator, ReleaseApprovalOperator
from llm_pipeline_airflow.claim import ClaimSensor, GiveBackOperator
from llm_pipeline_airflow.ladder import ChooseOperator
from llm_pipeline_airflow.promotion_group import LAST_GATE, PromotionGroup
from llm_pipeline_airflow.release_tasks import ReleaseTasks
from llm_pipeline_airflow.resolve_operator import ResolveOperator
from llm_pipeline_airflow.retries import task_defaults
from llm_pipeline_airflow.runs import dag_id_of
from llm_pipeline_airflow.task_docs import dag_doc
from llm_pipeline_airflow.watch import release_schedule

_NEEDED = ("download", "baseline_gate")
_RUNS_AT_ONCE = {"wait": 1, "supersede": 16}
"""A run that is queued supersedes nobody; between those that run, the claim decides."""


def release_dag(config_path: Path) -> DAG:
    """The DAG of a release config.

    Raises:
        ConfigError: The config, or anything that it names, is wrong.
    """
    loaded = load_release(config_path)
    dag = DAG(
        dag_id=dag_id_of(config_path),
        dag_display_name=f"Release {loaded.config.name}",
        description=loaded.config.description or f"Release {loaded.config.model.id}",
        doc_md=dag_doc(loaded),
        schedule=release_schedule(loaded),
        catchup=False,
        auto_register=False,  # a DAG file names its own: the check of all of them must add none
        max_active_runs=_RUNS_AT_ONCE[loaded.config.concurrency],
        tags=["llm-release", *loaded.config.targets],
        params={"revision": _revision_parameter(loaded), "replace": _replace_parameter(loaded)},
        default_args=task_defaults(),
    )
    with dag:
        _add_tasks(ReleaseTasks(loaded), loaded)
    return dag


def _add_tasks(tasks: ReleaseTasks, loaded: LoadedRelease) -> None:
    claim = ClaimSensor(**tasks.shared("claim"))
    resolve = ResolveOperator(**tasks.shared("resolve"))
    download = tasks.stage("download")
    baseline_gate = tasks.stage("baseline_gate")
    approve = _approval(tasks, loaded)
    report = tasks.stage("report").as_teardown(on_failure_fail_dagrun=False)
    give_back = GiveBackOperator(**tasks.shared("give_back")).as_teardown(setups=claim, on_failure_fail_dagrun=False)
    review, eval_data = _license_review(tasks, loaded), tasks.stage("eval_data")
    chain(claim, resolve, *review, eval_data, download, tasks.stage("baseline"), baseline_gate)
    judged = _add_recipes(tasks, loaded, after=(download, baseline_gate), before=report)
    _add_targets(tasks, loaded, after=(baseline_gate, *judged), before=(approve, report))
    _add_promotions(tasks, loaded, after=approve, before=report)
    report >> give_back


def _license_review(tasks: ReleaseTasks, loaded: LoadedRelease) -> list[BaseOperator]:
    approval = loaded.config.approval
    if not approval.on_license_change:
        return []
    return [LicenseReviewOperator(timeout_hours=approval.timeout_hours, **tasks.shared("review_license"))]


def _add_recipes(
    tasks: ReleaseTasks, loaded: LoadedRelease, *, after: tuple[BaseOperator, BaseOperator], before: BaseOperator
) -> list[BaseOperator]:
    """The rungs, each behind the one before; their gates are returned."""
    order = climbing_order(loaded.release)
    if loaded.release.ladder.strategy == "every":
        return [_add_rung(tasks, "recipes", order, after=after, before=before)]
    gates: list[BaseOperator] = []
    for number, recipe in enumerate(order, start=1):
        group_id = f"recipes_{number}"
        gates.append(_add_rung(tasks, group_id, (recipe,), after=after, before=before, behind=gates[-1:]))
    return gates


def _add_rung(
    tasks: ReleaseTasks,
    group_id: str,
    recipes: tuple[str, ...],
    *,
    after: tuple[BaseOperator, BaseOperator],
    before: BaseOperator,
    behind: Sequence[BaseOperator] = (),
) -> BaseOperator:
    """Recipes that are tried side by side, after the gates `behind` which they stand; their own gate is returned."""
    download, baseline_gate = after
    title = "Recipes" if group_id == "recipes" else f"Recipe {recipes[0]}"
    gates: list[BaseOperator] = []

    @task_group(group_id=group_id, group_display_name=title, tooltip="Quantize and judge, recipe by recipe")
    def rung(recipe: str) -> None:
        if behind:
            quantize = tasks.recipe("quantize", recipe, needs=_NEEDED, trigger_rule=TriggerRule.ALL_DONE)
        else:
            quantize = tasks.recipe("quantize", recipe)
        accuracy = tasks.recipe("accuracy", recipe)
        # Edges are set inside: outside, `>>` binds to what this function returns and lets other tasks start early.
        quantize << ([*behind, baseline_gate] if behind else download)
        [quantize, baseline_gate] >> accuracy
        quantize >> before  # a refused baseline ends the run, but not before quantizing has ended
        gates.append(accuracy)

    rung.expand(recipe=list(recipes))
    return gates[0]


def _add_targets(
    tasks: ReleaseTasks, loaded: LoadedRelease, *, after: Sequence[BaseOperator], before: Sequence[BaseOperator]
) -> TaskGroup:
    approve, report = before

    @task_group(group_id="targets", group_display_name="Targets", tooltip="Choose, build and judge, target by target")
    def targets(target: str) -> None:
        choose = ChooseOperator(
            subject=target, needs=_NEEDED, trigger_rule=TriggerRule.ALL_DONE, **tasks.shared("choose")
        )
        build = tasks.stage("build", target, max_active_tis_per_dagrun=loaded.deployment.computing_at_once)
        package = tasks.stage("package", target)
        staging = tasks.stage("staging", target)
        served_accuracy = tasks.stage("served_accuracy", target)
        load_test = tasks.stage("load_test", target)
        staging_down = tasks.stage("staging_down", target)
        chain(list(after), choose, build, package, staging, served_accuracy, load_test, staging_down, report)
        load_test >> approve
        # Two setups: a teardown runs when one of its setups did, so a server whose own gate failed is stopped too.
        staging_down.as_teardown(setups=[package, staging], on_failure_fail_dagrun=False)

    return targets.expand(target=list(loaded.config.targets))  # type: ignore[return-value]


def _add_promotions(tasks: ReleaseTasks, loaded: LoadedRelease, *, after: BaseOperator, before: BaseOperator) -> None:
    """Each target behind the way back of the one before it: a `settle` with only teardowns below it is a leaf."""
    settled: dict[str, str] = {}
    turn: list[BaseOperator] = [after]
    for number, target in enumerate(loaded.config.targets, start=1):
        group = PromotionGroup(tasks, loaded, group_id=f"promotion_{number}", name=target)
        settle, rollback = group.add(after=turn, behind=settled)
        [settle, rollback] >> before
        settled[target] = settle.task_id
        turn = [after, rollback]


def _approval(tasks: ReleaseTasks, loaded: LoadedRelease) -> BaseOperator:
    shared = tasks.shared("approve")
    rule = TriggerRule.ALL_DONE_MIN_ONE_SUCCESS  # one target that passed is enough to ask
    if loaded.config.approval.required:
        hours = loaded.config.approval.timeout_hours
        return ReleaseApprovalOperator(last_gate=LAST_GATE, timeout_hours=hours, trigger_rule=rule, **shared)
    automatic = {name: value for name, value in shared.items() if name not in ("config_path", "map_index_template")}
    return EmptyOperator(trigger_rule=rule, **automatic)


def _revision_parameter(loaded: LoadedRelease) -> Param:
    schema = ModelSource.model_json_schema()["properties"]["revision"]
    return Param(
        None,
        type=["null", "string"],
        pattern=schema["pattern"],
        title="Revision",
        description=(
            f"Branch, tag or commit of {loaded.config.model.id}; "
            f"empty releases the config's own, {loaded.config.model.revision}."
        ),
    )


def _replace_parameter(loaded: LoadedRelease) -> Param:
    places = ", ".join(loaded.places.values())
    return Param(
        False,
        type="boolean",
        title="Replace",
        description=(
            f"Take {places} over from the model that holds it: its users get {loaded.config.model.id} once this "
            "release is promoted. Otherwise a release into another model's place is refused."
        ),
    )

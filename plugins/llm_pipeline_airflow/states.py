"""Whether a task may begin, by how others of its run have ended: the flow's rules, where no trigger rule says them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline.operations.decisions import read_decision
from llm_pipeline.release.flow import APPROVAL
from llm_pipeline.release.step import Ending, Start
from llm_pipeline_airflow.faults import get_logger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from llm_pipeline.release.tasks import Task
    from llm_pipeline.release_progress import ReleaseProgress

log = get_logger(__name__)


def require_begun(context: Context, task: Task, item: str, flow: Callable[[], ReleaseProgress]) -> None:
    """Return if a task may begin; see `release/rules.py`.

    Airflow's `all_done_min_one_success` is skipped as soon as one of many is, which a run may have left out.

    Args:
        context: Of the task instance.
        task: The task of the flow.
        item: What it works on: a recipe, a target, or nothing.
        flow: Gives the release.

    Raises:
        AirflowFailException: What it needs did not end well, or the item did not pass its own gates: an approval of
            others is none of its own.
        AirflowSkipException: All that it needs was skipped, a person did not take the item, or one that comes first was
            not promoted. The log says it too, for the UI shows of a skip nothing but the state.
    """
    try:
        _by_needs(context, task)
        if task.offered:
            _by_turn(context, task, item, flow)
    except AirflowSkipException as skipped:
        log.info("%s is skipped: %s", item or task.step.name, skipped)
        raise


def _by_needs(context: Context, task: Task) -> None:
    if task.start is Start.ANY_GOOD:
        found = set(task_states(context, task.after).values())
        if "success" not in found:
            none = f"none of {', '.join(task.after)} succeeded in this run"
            raise AirflowSkipException(none) if found <= {"skipped"} else AirflowFailException(none)
    needed = {task_id: need.otherwise for need in task.needs for task_id in need.tasks}
    states = task_states(context, [*needed])
    if missing := [task_id for task_id in needed if states.get(task_id) != "success"]:
        why = f"{', '.join(missing)} did not succeed in this run"
        all_skipped = {states.get(task_id) for task_id in missing} == {"skipped"}
        fails = not all_skipped and any(needed[task_id] is Ending.FAILED for task_id in missing)
        raise AirflowFailException(why) if fails else AirflowSkipException(why)
    states = task_states(context, task.useless_without)
    if bad := [task_id for task_id, state in states.items() if state in ("failed", "upstream_failed", "skipped")]:
        raise AirflowSkipException(f"{', '.join(bad)} failed in this run")


def _by_turn(context: Context, task: Task, item: str, flow: Callable[[], ReleaseProgress]) -> None:
    offered = passed_targets(context, task.offered)
    if item not in offered:
        if why := flow().left_out("canary", item):
            raise AirflowSkipException(why)
        raise AirflowFailException(f"{item} did not pass {', '.join(task.offered)} in this run: no traffic is moved")
    decision = read_decision(flow(), APPROVAL)
    if decision is not None and decision.answer == "approved":
        if not decision.takes(item):
            raise AirflowSkipException(f"{decision.by} did not take it")
        offered = [other for other in offered if decision.takes(other)]
    for other, settle in task.stopped_by:
        if other in offered and "success" not in task_states(context, [settle], map_index=0).values():
            raise AirflowSkipException(f"{other} comes first and was not promoted")


def task_states(context: Context, task_ids: Sequence[str], map_index: int | None = None) -> dict[str, str]:
    """States in this run of some tasks, by id; of tasks in a mapped group, those of one map index."""
    if not task_ids:
        return {}
    ti = context["ti"]
    found = ti.get_task_states(dag_id=ti.dag_id, map_index=map_index, task_ids=list(task_ids), run_ids=[ti.run_id])
    return dict(found.get(ti.run_id, {}))


def passed_targets(context: Context, gates: tuple[str, ...]) -> list[str]:
    """Targets whose gates ended well in this run; Airflow drops the XCom of a gate that is run again."""
    first, *others = (_subjects(context, gate) for gate in gates)
    return [target for target in first if all(target in passed for passed in others)]


def _subjects(context: Context, gate: str) -> list[str]:
    returned = context["ti"].xcom_pull(task_ids=gate)  # all map indexes; one alone comes without its list
    results = returned if isinstance(returned, list) else [returned]
    return [result["subject"] for result in results if result]

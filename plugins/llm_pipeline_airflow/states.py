"""How other tasks of a run have ended, for what no trigger rule says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from airflow.sdk import Context


def require_any(context: Context, task_ids: Sequence[str]) -> None:
    """Return if any instance of some tasks succeeded in this run, or if there are no tasks.

    Airflow's `all_done_min_one_success` is skipped as soon as one of many is, which a run may have left out.

    Raises:
        AirflowFailException: None did, and one failed.
        AirflowSkipException: All were skipped.
    """
    states = set(task_states(context, task_ids).values())
    if task_ids and "success" not in states:
        none = f"none of {', '.join(task_ids)} succeeded in this run"
        raise AirflowSkipException(none) if states <= {"skipped"} else AirflowFailException(none)


def unsuccessful(context: Context, task_ids: tuple[str, ...]) -> list[str]:
    """Those of some unmapped tasks that have not succeeded in this run."""
    states = task_states(context, task_ids)
    return [task_id for task_id in task_ids if states.get(task_id) != "success"]


def failed(context: Context, task_ids: tuple[str, ...]) -> list[str]:
    """Those of some unmapped tasks that have ended in this run, and not well."""
    states = task_states(context, task_ids)
    return [task_id for task_id in task_ids if states.get(task_id) in ("failed", "upstream_failed", "skipped")]


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

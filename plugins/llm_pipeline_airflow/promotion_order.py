"""Whether the promotion of a target may begin: its gates, the approval, and the targets that come before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline_airflow.approvals import passed_targets
from llm_pipeline_airflow.ladder import unsuccessful
from llm_pipeline_airflow.logs import get_logger

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)


@dataclass(frozen=True)
class Turn:
    """What must be so before traffic of a target is moved.

    Attributes:
        last_gates: Task ids of the mapped gates before the approval; their results name the targets that passed.
        needs: Ids of unmapped tasks without whose success nothing is begun, though the trigger rule lets it run.
        promoted_before: `settle` of the targets that come first, by target: the first failure among those that passed
            their gates stops the others.
    """

    last_gates: tuple[str, ...]
    needs: tuple[str, ...] = ()
    promoted_before: Mapping[str, str] = field(default_factory=dict)

    def check(self, context: Context, target: str) -> None:
        """Return if the target may be promoted now.

        Raises:
            AirflowFailException: It did not pass its gates; an approval of other targets is none of its own.
            AirflowSkipException: What it needs did not end well, or a target before it was not promoted.
        """
        if missing := unsuccessful(context, self.needs):
            raise _not_begun(target, f"{missing} did not succeed in this run")
        offered = passed_targets(context, self.last_gates)
        if target not in offered:
            raise AirflowFailException(
                f"{target} did not pass {', '.join(self.last_gates)} in this run: no traffic is moved"
            )
        for other, settle in self.promoted_before.items():
            if other in offered and _state(context, settle) != "success":
                raise _not_begun(target, f"{other} comes first and was not promoted")


def _not_begun(target: str, why: str) -> AirflowSkipException:
    """What to raise; the log says it too, for the UI shows of this exception nothing but the state."""
    log.info("no traffic of %s is moved: %s", target, why)
    return AirflowSkipException(why)


def _state(context: Context, task_id: str) -> str | None:
    """State in this run of a task in a group that is mapped over one name."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, map_index=0, task_ids=[task_id], run_ids=[ti.run_id])
    return next(iter(states.get(ti.run_id, {}).values()), None)

"""Operators of the ladder: a rung that may be passed over, and the choice behind all of them.

Both run when the rungs before them have ended, well or not: a recipe that failed must not stop the next one. No
trigger rule says "all done, but these well" when some are skipped (`all_done_min_one_success` skips with them), so
they ask for the states that they need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from llm_pipeline.release.contract import StageRequest
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.operators import StageOperator
from llm_pipeline_airflow.states import failed, task_states, unsuccessful

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)


class RecipeOperator(StageOperator):
    """Quantizes or judges one recipe, unless a cheaper one passed for every target that could use it.

    Args:
        needs: Ids of tasks without whose success it is not tried, though its trigger rule lets it run.
        useless_without: Ids of tasks that it does not wait for: it is not tried when one has failed by then.
    """

    def __init__(self, *, needs: tuple[str, ...] = (), useless_without: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.needs = needs
        self.useless_without = useless_without

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowSkipException: The recipe is passed over, or what it needs did not end well.
        """
        if missing := unsuccessful(context, self.needs):
            raise self._skipped("not tried", f"{', '.join(missing)} did not succeed in this run")
        if missing := failed(context, self.useless_without):
            raise self._skipped("not tried", f"{', '.join(missing)} failed in this run")
        if self.release_id and (why := self.flow().passed_over(self.subject)):
            raise self._skipped("passed over", why)
        return super().request(context)

    def _skipped(self, ending: str, why: str) -> AirflowSkipException:
        """What to raise; the log says it too, for the UI shows of this exception nothing but the state."""
        self._ending = ending
        log.info("%s is skipped: %s", self.subject, why)
        return AirflowSkipException(why)


class NeedingOperator(StageOperator):
    """A stage that starts when the tasks before it have ended, well or not, except for those that it needs or wants.

    Args:
        needs: Ids of tasks without whose success it fails.
        wants: Ids of tasks without whose success it is skipped.
    """

    def __init__(self, *, needs: tuple[str, ...] = (), wants: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.needs = needs
        self.wants = wants

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowFailException: What it needs did not end well; a result of an earlier run is none of this one.
            AirflowSkipException: It was skipped, or what this one wants did not end well.
        """
        if missing := unsuccessful(context, self.needs):
            if set(task_states(context, missing).values()) == {"skipped"}:
                raise AirflowSkipException(f"{self.stage} is skipped, as {', '.join(missing)} were")
            raise AirflowFailException(f"{self.stage} cannot run: {', '.join(missing)} did not succeed in this run")
        if missing := unsuccessful(context, self.wants):
            raise AirflowSkipException(f"{self.stage} is skipped: {', '.join(missing)} did not succeed in this run")
        return super().request(context)

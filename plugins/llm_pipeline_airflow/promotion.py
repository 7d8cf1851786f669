"""Operators around production: the canary's steps, and the way back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from llm_pipeline.base.errors import PipelineError
from llm_pipeline.config.loading import load_release
from llm_pipeline.release.contract import StageRequest
from llm_pipeline_airflow.faults import attempt
from llm_pipeline_airflow.logs import get_logger
from llm_pipeline_airflow.notifications import tell
from llm_pipeline_airflow.operators import StageOperator
from llm_pipeline_airflow.promotion_order import Turn

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

log = get_logger(__name__)

_STARTED = frozenset({"success", "failed", "running", "up_for_retry"})


_TELL_SECONDS = 10.0


class TellingOperator(StageOperator):
    """A stage that acts on a canary: people are told of it while it runs and when it has ended."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._told_at = 0.0

    def poll_until_complete(self, external_id: JsonValue, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Relay the stage's log until it ends; see `StageOperator`."""
        try:
            return super().poll_until_complete(external_id, context)
        finally:
            self._tell()

    def attend(self) -> None:
        """Tell what there is, now and then."""
        if time.monotonic() - self._told_at >= _TELL_SECONDS:
            self._tell()
            self._told_at = time.monotonic()

    def _tell(self) -> None:
        loaded = attempt("reading whom to notify", load_release, Path(self.config_path))
        if isinstance(loaded, PipelineError):  # the config was changed meanwhile: no reason to end a canary
            log.warning("no notification is sent: %s", loaded)
            return
        tell(loaded.deployment, loaded.config.place_of(self.subject), self.release_id)


class CanaryStepOperator(TellingOperator):
    """Moves traffic of one target one step on, if that target passed its gates in this very run.

    Args:
        turn: Whether it may.
    """

    def __init__(self, *, turn: Turn, **kwargs: Any) -> None:
        kwargs.setdefault("stage", "canary")
        super().__init__(**kwargs)
        self.turn = turn

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do, if it is the target's turn; see `Turn`."""
        try:
            self.turn.check(context, self.subject)
        except AirflowSkipException:
            self._ending = "not begun"
            raise
        return super().request(context)


class RollbackOperator(TellingOperator):
    """Gives all traffic back to the stable version, unless the release was promoted or moved no traffic at all.

    A canary that waits for a person waits on if the guard was heard of lately, which watches its deadline: clear its
    step to go on with it. Without a guard it is rolled back.

    Args:
        canary_steps: Task ids of the steps; none of them started means nothing to roll back.
    """

    def __init__(self, *, canary_steps: tuple[str, ...], **kwargs: Any) -> None:
        kwargs.setdefault("stage", "rollback")
        super().__init__(**kwargs)
        self.canary_steps = canary_steps

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowSkipException: This run moved no traffic; a canary of another run is none of its business.
        """
        if not _STARTED.intersection(_own_states(context, self.canary_steps).values()):
            raise AirflowSkipException(f"no traffic of {self.subject} was moved by this run")
        request = super().request(context)
        guarded = load_release(Path(self.config_path)).deployment.guard.schedule is not None
        return request.model_copy(update={"config": {**request.config, "leave_paused": guarded}})


def _own_states(context: Context, task_ids: tuple[str, ...]) -> dict[str, str]:
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, map_index=ti.map_index, task_ids=list(task_ids), run_ids=[ti.run_id])
    return dict(states.get(ti.run_id, {}))

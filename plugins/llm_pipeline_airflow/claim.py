"""A DAG run and the claim on its model: it waits for it without a worker slot, and always gives it back."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import BaseOperator, BaseSensorOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowSkipException

from llm_pipeline.base.errors import Terminal
from llm_pipeline.base.logging import Lines
from llm_pipeline.release.claim import AirflowRun, Claimant, ReleaseClaim
from llm_pipeline.release.loading import ConfiguredRelease, load_release
from llm_pipeline.store import open_store
from llm_pipeline_airflow.connections import config_with_secrets
from llm_pipeline_airflow.ended import who_ended
from llm_pipeline_airflow.faults import get_logger
from llm_pipeline_airflow.started_run import overrides_of, revision_of_run
from llm_pipeline_airflow.task_endings import refused

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)

_POLL, _LONGEST_POLL = timedelta(seconds=20), timedelta(minutes=2)
"""Each look is a task of a worker, for every release that waits: the longer one has waited, the rarer its looks."""
_LONGEST_WAIT = timedelta(days=7)
_UNFINISHED = ["queued", "running"]
_LOOPBACK = (None, "localhost", "127.0.0.1", "::1")


class ClaimSensor(BaseSensorOperator):
    """Takes the claim on the model when it is this run's turn; between its looks it holds no worker slot.

    Args:
        config_path: The release config.
    """

    ui_color = "#f3e8d9"

    def __init__(self, *, config_path: str, **kwargs: Any) -> None:
        super().__init__(
            mode="reschedule",
            poke_interval=_POLL,
            exponential_backoff=True,
            max_wait=_LONGEST_POLL,
            timeout=_LONGEST_WAIT,
            **kwargs,
        )
        self.config_path = config_path

    def poke(self, context: Context) -> bool:
        """Whether the claim is this run's now.

        Raises:
            Refused: The release cannot work, so it must not wait for its turn to find that out.
            AirflowSkipException: The run has nothing to release, or only plans: it must not take another's turn.
        """
        loaded = config_with_secrets(self.config_path)
        if not context.get("task_reschedule_count", 0):
            self._plan(loaded, context)
            revision_of_run(load_release(Path(self.config_path)), context)
        claim = claim_of(loaded, context)
        other = claim.ask()
        log.info("%s", "it is this run's turn" if other is None else claim.waiting_for(other))
        return other is None

    def _plan(self, loaded: ConfiguredRelease, context: Context) -> None:
        """Refuse what is impossible, without network and store: it must not wait to be found out; or show the plan."""
        from llm_pipeline.planning.model import format_plan
        from llm_pipeline.planning.plan import plan_release

        params = context.get("params") or {}
        path = Path(self.config_path)
        try:
            overrides = overrides_of(params, loaded)
            if not params.get("dry_run"):
                plan_release(path, overrides=overrides, store_seconds=0, source_seconds=0)
                return
            plan = plan_release(path, overrides=overrides, replace=bool(params.get("replace")))
        except Terminal as error:
            raise refused(context, str(error)) from error
        log.info("%s", Lines(f"the plan:\n{format_plan(plan)}"))
        raise AirflowSkipException("a dry run: the plan is in the log, and nothing was released")


class GiveBackOperator(BaseOperator):
    """Gives the claim back: the run's last task, which always runs once the claim was taken.

    It fails, and so the run does, where a person ended the run.

    Args:
        config_path: The release config.
    """

    ui_color = ClaimSensor.ui_color

    def __init__(self, *, config_path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config_path = config_path

    def execute(self, context: Context) -> None:
        """Give the claim back; one that was taken over is left alone."""
        held = claim_of(config_with_secrets(self.config_path), context).give_back()
        log.info("the next release of the model may begin" if held else "this run no longer held the claim")
        if by := who_ended(context):
            raise refused(context, f"{by} ended this run: it was marked as failed")


def claim_of(loaded: ConfiguredRelease, context: Context) -> ReleaseClaim:
    """The claim on a release config's model, as this DAG run sees it."""
    run = context["dag_run"]
    party = AirflowRun(airflow=_this_airflow(), dag_id=run.dag_id, run_id=run.run_id)
    claimant = Claimant.of(loaded.config, party)
    ti = context["ti"]

    def is_over(other: AirflowRun) -> bool | None:
        if ti.get_dr_count(other.dag_id, run_ids=[other.run_id], states=_UNFINISHED):
            return False
        if ti.get_dr_count(other.dag_id, run_ids=[other.run_id]):
            return True
        return True if other.airflow == party.airflow else None  # deleted here; or never was here

    return ReleaseClaim(open_store(loaded.deployment.store), loaded.config.model.id, claimant, run_is_over=is_over)


def _this_airflow() -> str:
    """This Airflow's identity among those that share a store: the address that its workers report to."""
    url = conf.get("core", "execution_api_server_url", fallback="") or conf.get("api", "base_url", fallback="")
    return url if urlsplit(url).hostname not in _LOOPBACK else f"{url or '/'} of {socket.gethostname()}"

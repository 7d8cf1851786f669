"""The operator of a release's first stage: it pins the commit that everything after it works on."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_pipeline.flow import resolve_request
from llm_pipeline.operations.replacement import replace
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.loading import load_release
from llm_pipeline.runners.stage_environment import secret_connections
from llm_pipeline.store import open_store
from llm_pipeline_airflow.commit_of_run import remember_commit, revision_of_run, run_name
from llm_pipeline_airflow.connections import fetch_secrets
from llm_pipeline_airflow.operators import StageOperator
from llm_pipeline_airflow.runs import remember_run

if TYPE_CHECKING:
    from airflow.sdk import Context


class ResolveOperator(StageOperator):
    """Pins the model's revision and returns the release's id; `commit_of_run` says which commit that is."""

    template_fields: Collection[str] = ()

    def __init__(self, *, config_path: str, **kwargs: Any) -> None:
        kwargs.setdefault("stage", "resolve")
        super().__init__(config_path=config_path, **kwargs)

    def execute(self, context: Context) -> Any:
        """Run the stage and return the release's id."""
        return super().execute(context)["release_id"]

    def request(self, context: Context) -> StageRequest:
        """What the stage is asked to do.

        Raises:
            AirflowSkipException: The run has nothing to release.
        """
        loaded = load_release(Path(self.config_path))
        fetch_secrets(secret_connections(loaded.deployment))
        revision = revision_of_run(loaded, context)
        if context["params"].get("replace"):
            store = open_store(loaded.deployment.store)
            replace(store, loaded.places.values(), loaded.config.model.id, by=f"run {run_name(context)}")
        return resolve_request(loaded, revision)

    def conclude(self, context: Context, result: StageResult) -> dict[str, Any]:
        """Remember which release this run works on, for the report's tab, and for the release watch."""
        store = open_store(self.configured.deployment.store)
        remember_run(store, context["dag_run"].dag_id, context["run_id"], result.release_id)
        remember_commit(self.configured, result.release_id, context)
        returned = super().conclude(context, result)
        self._ending = result.release_id
        return returned

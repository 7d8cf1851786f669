"""The tasks of a release's DAG: what the operators of one release config have in common."""

from __future__ import annotations

from typing import Any

from llm_pipeline.config.loading import LoadedRelease
from llm_pipeline_airflow.ladder import RecipeOperator
from llm_pipeline_airflow.operators import LABEL_TEMPLATE, StageOperator
from llm_pipeline_airflow.placement import placement_arguments
from llm_pipeline_airflow.task_docs import TASK_DOCS


class ReleaseTasks:
    """Makes tasks with what all of them share.

    Args:
        loaded: The release config.
    """

    def __init__(self, loaded: LoadedRelease) -> None:
        self._loaded = loaded

    def stage(self, name: str, subject: str = "", *, only: str = "", **options: Any) -> StageOperator:
        """The task of a stage, named after it."""
        return StageOperator(stage=name, subject=subject, **self.shared(name, only=only), **options)

    def recipe(self, name: str, recipe: str, **options: Any) -> RecipeOperator:
        """The task of a stage that works on a recipe."""
        options["max_active_tis_per_dagrun"] = self._loaded.deployment.computing_at_once
        return RecipeOperator(stage=name, subject=recipe, **self.shared(name), **options)

    def shared(self, name: str, *, only: str = "") -> dict[str, Any]:
        """Arguments of every task of a stage; `only` is the one target of its group."""
        display_name, documentation = TASK_DOCS[name]
        return {
            "task_id": name,
            "task_display_name": display_name,
            "doc_md": documentation,
            "config_path": str(self._loaded.path),
            "map_index_template": LABEL_TEMPLATE,
            **placement_arguments(name, self._loaded, only=only),
        }

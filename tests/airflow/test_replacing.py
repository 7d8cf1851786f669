"""A run that is told to replace hands its places over, before the plan of its first stage asks who holds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llm_pipeline_airflow.dag_factory import release_dag
from llm_pipeline_airflow.operators import ResolveOperator

from llm_pipeline.release.loading import load_release
from llm_pipeline.store import ArtifactStore, open_store
from llm_pipeline.store.place_state import claim_place, read_place


@pytest.fixture
def store(project) -> ArtifactStore:
    store = open_store(load_release(project.config).deployment.store)
    claim_place(store, "cpu-a", "demo/other", by="other-1")
    return store


def request(project, *, replace: bool) -> None:
    context: Any = {
        "params": {"revision": None, "replace": replace},
        "dag_run": SimpleNamespace(dag_id="release__tiny", run_type="manual"),
        "run_id": "manual-1",
    }
    ResolveOperator(task_id="resolve", config_path=str(project.config)).request(context)


def test_a_run_that_replaces_hands_over_what_others_hold_and_reserves_nothing(project, store) -> None:
    request(project, replace=False)
    assert read_place(store, "cpu-a") == claim_place(store, "cpu-a", "demo/other", by="other-2")
    request(project, replace=True)
    holder = read_place(store, "cpu-a")
    assert (holder.model_id, holder.next_model, holder.next_by) == (
        "demo/other", "demo/tiny", "run release__tiny/manual-1",
    )  # fmt: skip
    assert read_place(store, "cpu-b").model_id == ""


def test_the_form_asks_for_it_and_says_what_it_does(project) -> None:
    parameter = release_dag(project.config).params.get_param("replace")
    assert parameter.value is False
    assert parameter.schema["type"] == "boolean"
    assert "Take cpu-a, cpu-b over" in parameter.description

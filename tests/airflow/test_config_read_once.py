"""A task reads the release config once, whatever it does with it: what it starts and where must agree."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from llm_pipeline_airflow.claim import ClaimSensor, GiveBackOperator
from llm_pipeline_airflow.operators import ResolveOperator

from llm_pipeline.release import loading


@pytest.fixture
def reads(monkeypatch) -> Counter[str]:
    """How often each configuration file was read."""
    counts: Counter[str] = Counter()
    read = loading.load_yaml

    def counted(path, *arguments, **options):
        counts[path.name] += 1
        return read(path, *arguments, **options)

    monkeypatch.setattr(loading, "load_yaml", counted)
    return counts


def context() -> dict[str, Any]:
    run = SimpleNamespace(dag_id="release__tiny", run_id="manual-1", run_type="manual", run_after=datetime.now(UTC))
    ti = SimpleNamespace(get_dr_count=lambda *_names, **_how: 0)
    return {"dag_run": run, "run_id": run.run_id, "ti": ti, "params": {"revision": None, "replace": False}}


def test_the_first_stage_is_claimed_requested_and_started_from_one_reading(
    project, in_process, reads, monkeypatch
) -> None:
    of_the_run, config, before_start = context(), str(project.config), Counter()
    assert ClaimSensor(task_id="claim", config_path=config).poke(of_the_run)
    reads.clear()
    monkeypatch.setattr(in_process, "before", lambda _request: before_start.update(reads))
    ResolveOperator(task_id="resolve", config_path=config).submit_job(of_the_run)
    assert in_process.ran[-1] == ("resolve", "")
    assert before_start["quick.yaml"] == 1


def test_a_release_on_its_way_reads_no_recipe_target_or_policy_again(project, in_process, reads) -> None:
    of_the_run, config = context(), str(project.config)
    assert ClaimSensor(task_id="claim", config_path=config).poke(of_the_run)
    reads.clear()
    GiveBackOperator(task_id="give_back", config_path=config).execute(of_the_run)
    assert list(reads) == [project.config.name, "here.yaml"], "itself and its deployment"

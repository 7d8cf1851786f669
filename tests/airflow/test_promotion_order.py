"""What the first step of a target does about the targets that come before it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from llm_pipeline_airflow.dag_factory import release_dag

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.config.overrides import Overrides
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import ReleaseRecord, release_record_name
from llm_pipeline.store import open_store
from llm_pipeline.store.signed_documents import replace_document


@dataclass(frozen=True)
class TaskInstance:
    """What the operators ask Airflow about a run."""

    states: dict[str, str]
    passed: tuple[str, ...] = ("cpu-a", "cpu-b")
    dag_id: str = "release__tiny"
    run_id: str = "a run"
    map_index: int = 0

    def get_task_states(self, *, task_ids, **_run):
        found = {name: state for name, state in self.states.items() if name.rpartition("_0")[0] in task_ids}
        found |= {name: state for name, state in self.states.items() if name in task_ids}
        return {self.run_id: found}

    def xcom_pull(self, *, task_ids):
        assert task_ids == "targets.load_test"
        return [{"subject": target} for target in self.passed]


@pytest.fixture
def second(project):
    step = release_dag(project.config).get_task("promotion_2.canary_5")
    step.subject, step.release_id = "cpu-b", "a-release"
    loaded = load_release(project.config)
    write_release(open_store(loaded.deployment.store), loaded)
    return step


def write_release(store, loaded) -> None:
    """The record of a release, as the run has it."""
    record = ReleaseRecord(
        release_id="a-release",
        release=loaded.release,
        deployment=loaded.deployment,
        model=PinnedModel(id="demo/tiny", commit="0" * 40, files=()),
        datasets={},
        created_at=datetime.now(UTC),
    )
    replace_document(store, release_record_name("a-release"), record.model_dump(mode="json"))


def asked(step, **run) -> None:
    step.request({"ti": TaskInstance(**run)})


def test_a_target_is_left_alone_when_the_one_before_it_was_not_promoted(second):
    for settle in ("failed", "upstream_failed", "skipped"):
        with pytest.raises(AirflowSkipException, match="cpu-a comes first and was not promoted"):
            asked(second, states={"approve": "success", "promotion_1.settle_0": settle})
    assert second.label == "cpu-b · skipped"


def test_a_target_that_was_never_offered_stops_no_other(second, monkeypatch):
    began = []
    monkeypatch.setattr(type(second).__mro__[1], "request", lambda *_: began.append("cpu-b"))
    states = {"approve": "success", "promotion_1.settle_0": "upstream_failed"}
    asked(second, states=states, passed=("cpu-b",))
    assert began == ["cpu-b"]


def test_nothing_begins_without_the_approval_though_the_trigger_rule_lets_it_run(second):
    with pytest.raises(AirflowSkipException, match="approve did not succeed"):
        asked(second, states={"approve": "skipped", "promotion_1.settle_0": "skipped"})


def test_a_target_that_this_run_leaves_out_is_left_alone(second, project):
    loaded = load_release(project.config, Overrides(targets=("cpu-a",)))
    write_release(open_store(loaded.deployment.store), loaded)
    with pytest.raises(AirflowSkipException, match="this run leaves cpu-b out"):
        asked(second, states={"approve": "success", "promotion_1.settle_0": "success"}, passed=("cpu-a",))


def test_a_target_that_did_not_pass_is_refused(second):
    with pytest.raises(AirflowFailException, match=r"cpu-b did not pass targets\.load_test"):
        asked(second, states={"approve": "success", "promotion_1.settle_0": "success"}, passed=("cpu-a",))

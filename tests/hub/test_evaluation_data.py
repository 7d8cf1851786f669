"""What `plan` and the first stage say of the data sets that tasks read, before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from llm_pipeline.base.errors import ConfigError, PipelineError
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.hub.source import SourceUnavailable
from llm_pipeline.planning.evaluation_data import EvaluationData, evaluation_data
from llm_pipeline.planning.plan import format_plan, plan_release
from llm_pipeline.release.loading import load_release
from llm_pipeline.release.record import read_release_record
from llm_pipeline.store import open_store

from .conftest import TOKEN_VARIABLE, LocalHub
from .test_resolve_stage import CONFIGS, Release

GSM8K = "openai/gsm8k"
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: test, path: socratic/test-*}
---
"""
FILES = {"README.md": CARD, "main/train-0.parquet": "1", "main/test-0.parquet": "2", "socratic/test-0.parquet": "3"}
EXAMPLES = {path.stem: path for path in sorted((CONFIGS / "releases").glob("*.yaml"))}


class Asking:
    """A release whose one task reads GSM8K from the local hub."""

    def __init__(self, root: Path, hub: LocalHub) -> None:
        self.hub, self.root = hub, root
        self.release = Release(root, hub)
        self.evaluation(tasks=["gsm8k"], served_tasks=["gsm8k"])

    def evaluation(self, **fields: object) -> None:
        self.release.set(self.release.path, evaluation=fields, baseline={"dtype": "float16"})

    def own_task(self, **fields: object) -> None:
        directory = self.release.root / "tasks" / "own"
        directory.mkdir(exist_ok=True)
        task = {"task": "mine", "dataset_path": GSM8K, "dataset_name": "main", "test_split": "test"} | fields
        (directory / "mine.yaml").write_text(yaml.safe_dump(task))
        self.evaluation(task_directory="tasks/own", tasks=["mine"], served_tasks=["mine"])

    def publish(self, **changes: str) -> str:
        directory = self.root / "source"
        for name, text in (FILES | changes).items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return publish_revision(self.hub.root / "datasets", GSM8K, directory, "upload")

    def plan(self, **options: object) -> EvaluationData:
        return evaluation_data(load_release(self.release.path), **options)

    def refusal(self) -> str:
        with pytest.raises(PipelineError) as error:
            self.plan()
        return f"{type(error.value).__name__}: {error.value}"


@pytest.fixture
def asking(tmp_path: Path, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> Asking:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return Asking(tmp_path, local_hub)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_data_of_every_shipped_release_are_known_without_a_network(name: str) -> None:
    found = evaluation_data(load_release(EXAMPLES[name]), 0)
    assert found.unknown_tasks == ()
    if name.startswith("demo"):
        assert found == EvaluationData()
        return
    assert {data.name: data.tasks for data in found.data_sets} == {
        "openai/gsm8k": ("gsm8k",), "allenai/ai2_arc": ("arc_challenge",), "Rowan/hellaswag": ("hellaswag",),
        "allenai/winogrande": ("winogrande",),
    }  # fmt: skip
    assert "not looked up" in found.warnings[0]


def test_the_plan_shows_what_is_read_and_at_which_commit(asking: Asking) -> None:
    commit = asking.publish()
    (data,) = asking.plan().data_sets
    assert (data.name, data.revision, data.commit, data.tasks) == (GSM8K, "main", commit, ("gsm8k",))
    asking.hub.publish()
    plan = plan_release(asking.release.path, store_seconds=0)
    assert commit[:12] in format_plan(plan)
    assert data.bytes == sum(len(text) for name, text in FILES.items() if name != "README.md")
    assert plan.disk is not None
    assert plan.disk.data == data.bytes
    assert "of the evaluation, once in the store and twice in work" in format_plan(plan)


def test_a_directory_is_planned_with_as_the_hub_is(asking: Asking) -> None:
    asking.publish()
    root = asking.root / "data_sets"
    (root / GSM8K).parent.mkdir(parents=True)
    (asking.root / "source").rename(root / GSM8K)
    asking.release.set(asking.release.root / "deployments/local.yaml", hub={"endpoint": "http://127.0.0.1:9"})
    asking.evaluation(tasks=["gsm8k"], served_tasks=["gsm8k"], data_source=f"file://{root}")
    (data,) = asking.plan().data_sets
    assert data.bytes == sum(len(text) for name, text in FILES.items() if name != "README.md")


def test_a_missing_data_set_is_refused(asking: Asking) -> None:
    said = asking.refusal()
    assert said.startswith(f"NotOnTheHub: datasets/{GSM8K}@main: data of gsm8k: no such repository")


def test_a_gated_data_set_is_refused_with_the_page_of_its_terms(asking: Asking, monkeypatch) -> None:
    asking.publish()
    asking.hub.restrict(f"datasets/{GSM8K}", readers=("hf_reader",), gated="auto")
    said = asking.refusal()
    assert said.startswith("RepositoryGated")
    assert f"accept the terms at {asking.hub.endpoint}/datasets/{GSM8K}" in said
    monkeypatch.setenv(TOKEN_VARIABLE, "hf_reader")
    assert asking.plan().data_sets[0].commit


def test_a_data_set_that_is_a_program_is_refused(asking: Asking) -> None:
    asking.publish(**{"gsm8k.py": "raise SystemExit"})
    assert "Unsupported" in asking.refusal()
    assert "evaluation.data_revisions" in asking.refusal()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset_name": "easy"}, "has no configuration 'easy', only main, socratic"),
        ({"dataset_name": None}, "names no configuration, and there are several: main, socratic"),
        ({"dataset_name": "socratic", "fewshot_split": "train"}, "socratic has no split train, only test"),
        ({"dataset_kwargs": {"revision": "v2"}}, "no such revision"),
    ],
)
def test_what_the_card_does_not_have_is_refused(asking: Asking, fields: dict[str, object], message: str) -> None:
    asking.publish()
    asking.own_task(**fields)
    said = asking.refusal()
    assert f"data of mine: {message}" in said.replace("the data set ", "").replace("its task ", "")


def test_a_revision_of_a_data_set_that_nobody_reads_is_refused(asking: Asking) -> None:
    asking.evaluation(tasks=["gsm8k"], served_tasks=["gsm8k"], data_revisions={"openai/gsm9k": "main"})
    assert "openai/gsm9k, which no task reads -> the tasks read: openai/gsm8k" in asking.refusal()


def test_without_a_hub_the_plan_says_what_it_could_not_judge_and_the_first_stage_waits(asking: Asking) -> None:
    asking.release.set(asking.release.root / "deployments/local.yaml", hub={"endpoint": "http://127.0.0.1:9"})
    found = asking.plan()
    assert found.data_sets[0].commit is None
    assert f"whether {GSM8K} can be fetched for the evaluation is not known: no answer from" in found.warnings[0]
    with pytest.raises(SourceUnavailable):
        asking.plan(required=True)


def test_a_task_that_is_not_known_here_is_left_to_lm_eval(asking: Asking) -> None:
    asking.evaluation(tasks=["swde"], served_tasks=["swde"], data_revisions={"hazyresearch/based-swde": "main"})
    found = asking.plan()
    assert found.unknown_tasks == ("swde",)
    assert "which data sets swde reads is not known here" in found.warnings[0]


def test_the_release_pins_its_data_once_and_another_commit_is_another_release(asking: Asking) -> None:
    asking.hub.publish()
    commit = asking.publish()
    first = asking.release.resolve()
    store = open_store(load_release(asking.release.path).deployment.store)
    assert read_release_record(store, first.release_id).data_commits == {GSM8K: commit}
    config = asking.release.request(first, "eval_data").config
    assert (config["commits"], config["revisions"], config["release"]) == ({GSM8K: commit}, {}, "")
    assert asking.release.resolve().release_id == first.release_id
    asking.publish(**{"main/test-0.parquet": "other items"})
    assert asking.release.resolve().release_id != first.release_id
    asking.evaluation(tasks=["gsm8k"], served_tasks=["gsm8k"], data_revisions={GSM8K: commit})
    pinned = asking.release.resolve()
    assert read_release_record(store, pinned.release_id).data_commits == {GSM8K: commit}


def test_what_lm_eval_alone_knows_is_pinned_by_the_stage_for_this_release(asking: Asking) -> None:
    asking.hub.publish()
    asking.evaluation(tasks=["swde"], served_tasks=["swde"])
    resolved = asking.release.resolve()
    assert asking.release.request(resolved, "eval_data").config["release"] == resolved.release_id


def test_a_damaged_revision_is_refused_in_the_config(asking: Asking) -> None:
    asking.evaluation(tasks=["gsm8k"], served_tasks=["gsm8k"], data_revisions={"not a name": "main"})
    with pytest.raises(ConfigError):
        asking.plan()

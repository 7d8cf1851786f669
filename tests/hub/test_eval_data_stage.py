"""Evaluation data: from the local hub through the stage to questions that are built with the network switched off."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import gettempdir

import pytest

pytest.importorskip("lm_eval")

import datasets
import yaml

from llm_pipeline.accuracy.eval_data import read_record
from llm_pipeline.accuracy.questions import Questions
from llm_pipeline.config.release import Evaluation
from llm_pipeline.confinement import confined
from llm_pipeline.demo.hub_repository import publish_revision
from llm_pipeline.stages.contract import ArtifactRef, StageFailure, StageRequest, StageResult
from llm_pipeline.stages.execute import execute
from llm_pipeline.store import open_store
from llm_pipeline.store.provenance import Provenance, here

from .conftest import TOKEN_VARIABLE, LocalHub

NAME = "demo/arithmetic"
CARD = """---
configs:
- config_name: easy
  data_files:
  - {split: train, path: easy/train-*}
  - {split: test, path: easy/test-*}
- config_name: hard
  data_files:
  - {split: test, path: hard/test-*}
---
"""


def rows(count: int, first: int = 0) -> list[dict[str, str]]:
    return [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(first, first + count)]


def write(path: Path, content: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = datasets.Dataset.from_list(content)
    {".parquet": data.to_parquet, ".jsonl": data.to_json, ".csv": data.to_csv}[path.suffix](path)


def task(name: str = "addition", **changes: object) -> dict[str, object]:
    return {
        "task": name, "dataset_path": NAME, "dataset_name": "easy", "output_type": "generate_until",
        "test_split": "test", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
    } | changes  # fmt: skip


class World:
    """A hub with a data set, a store, and a release's tasks."""

    def __init__(self, tmp_path: Path, hub: LocalHub) -> None:
        self.path, self.hub = tmp_path, hub
        self.store = open_store((tmp_path / "store").as_uri())
        self.source = tmp_path / "arithmetic"
        (self.source).mkdir()
        (self.source / "README.md").write_text(CARD)
        write(self.source / "easy/train-00000.parquet", rows(5))
        write(self.source / "easy/test-00000.parquet", rows(7, 5))
        write(self.source / "easy/test-00001.parquet", rows(3, 12))
        write(self.source / "hard/test-00000.parquet", rows(4, 1000))

    def publish(self) -> str:
        return publish_revision(self.hub.root / "datasets", NAME, self.source, "upload")

    def tasks(self, *definitions: dict[str, object]) -> ArtifactRef:
        directory = self.path / "tasks"
        directory.mkdir(exist_ok=True)
        for definition in definitions:
            (directory / f"{definition['task']}.yaml").write_text(yaml.safe_dump(definition))
        return self.store.publish("dataset", directory, Provenance(**here()))

    def run(self, *definitions: dict[str, object], **config: object) -> StageResult | StageFailure:
        self.names = tuple(str(one["task"]) for one in definitions)
        self.inputs = {"tasks": self.tasks(*definitions)}
        hub = {"endpoint": self.hub.endpoint, "token_variable": TOKEN_VARIABLE}
        request = StageRequest(
            release_id="test",
            stage="eval_data",
            config=json.loads(json.dumps({"tasks": self.names, "release": "test", "hub": hub} | config)),
            inputs=self.inputs,
            store=self.store.uri,
            work_root=str(self.path / "work"),
        )
        return execute(request)

    def questions(self, result: StageResult) -> Questions:
        """As a stage that scores builds them: without a network."""
        data, tasks = self.store.fetch(result.artifacts["eval_data"]), self.store.fetch(self.inputs["tasks"])
        evaluation = Evaluation(tasks=self.names, served_tasks=self.names)
        return confined(
            lambda: Questions.load(tasks, evaluation, self.names, data=data), [self.path, Path(gettempdir())]
        )


@pytest.fixture
def world(tmp_path: Path, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return World(tmp_path, local_hub)


def test_a_data_set_of_the_hub_is_fetched_at_its_commit_and_scored_offline(world: World) -> None:
    commit = world.publish()
    result = world.run(task())
    assert isinstance(result, StageResult), result
    record = read_record(world.store.fetch(result.artifacts["eval_data"]))
    (held,) = record.data_sets
    assert (held.repository, held.commit) == (NAME, commit)
    assert {file.path for file in held.files} == {
        "README.md", "easy/train-00000.parquet", "easy/test-00000.parquet", "easy/test-00001.parquet"
    }  # fmt: skip
    assert not world.hub.downloads("hard/test-00000.parquet")
    questions = world.questions(result)
    assert [one.args[0] for one in questions.instances()] == [row["question"] for row in rows(10, 5)]
    (read,) = questions.data
    assert (read.repository, read.commit, read.documents) == (NAME, commit, {"train": 5, "test": 10})

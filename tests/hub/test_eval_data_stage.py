"""Evaluation data: from the local hub through the stage to questions that are built with the network switched off."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import gettempdir

import pytest

pytest.importorskip("lm_eval")

import datasets
import yaml
from huggingface_hub import constants
from resolved_release import request_below

from llm_pipeline.accuracy.data_sets import HeldDataSet, held_data_sets
from llm_pipeline.accuracy.tasks import LoadedTasks, load_tasks
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.errors import ErrorDocument
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.release import Evaluation
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.release.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.release.execute import execute
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
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
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

    def request(self, *definitions: dict[str, object], **config: object) -> StageRequest:
        self.names = tuple(str(one["task"]) for one in definitions)
        self.inputs = {"tasks": self.tasks(*definitions)}
        hub = {"endpoint": self.hub.endpoint, "token_variable": TOKEN_VARIABLE}
        asked = json.loads(json.dumps({"tasks": self.names, "release": "test", "hub": hub} | config))
        return request_below(self.path, "eval_data", asked, inputs=self.inputs)

    def run(self, *definitions: dict[str, object], **config: object) -> StageResult:
        result = execute(self.request(*definitions, **config))
        assert isinstance(result, StageResult), result
        return result

    def refusal(self, *definitions: dict[str, object], **config: object) -> ErrorDocument:
        failure = execute(self.request(*definitions, **config))
        assert isinstance(failure, StageFailure), failure
        return failure.error

    def prompts(self, result: StageResult) -> list[str]:
        loaded = self.loaded(result)
        return [task.doc_to_text(document) for task in loaded.tasks.values() for document in task.eval_docs]

    def held(self, result: StageResult) -> tuple[HeldDataSet, ...]:
        return held_data_sets(self.store.fetch(result.artifacts["eval_data"]))

    def loaded(self, result: StageResult) -> LoadedTasks:
        """As a stage that scores loads them: without a network."""
        data, tasks = self.store.fetch(result.artifacts["eval_data"]), self.store.fetch(self.inputs["tasks"])
        evaluation = Evaluation(tasks=self.names, served_tasks=self.names)
        return confined(lambda: load_tasks(tasks, data, evaluation, self.names), [self.path, Path(gettempdir())])


@pytest.fixture
def world(tmp_path: Path, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # other tests of this process may have it on
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    return World(tmp_path, local_hub)


def test_a_data_set_of_the_hub_is_fetched_at_its_commit_and_scored_offline(world: World) -> None:
    commit = world.publish()
    result = world.run(task())
    (held,) = world.held(result)
    assert (held.repository, held.commit) == (NAME, commit)
    assert {file.path for file in held.files} == {
        "README.md", "easy/train-00000.parquet", "easy/test-00000.parquet", "easy/test-00001.parquet"
    }  # fmt: skip
    assert not world.hub.downloads("hard/test-00000.parquet")
    assert world.prompts(result) == [row["question"] for row in rows(10, 5)]
    (read,) = world.loaded(result).data
    assert (read.repository, read.commit, read.files) == (NAME, commit, 4)


def test_files_without_a_card_are_read_as_the_library_reads_them(world: World) -> None:
    for name, suffix in (("demo/lines", ".jsonl"), ("demo/table", ".csv")):
        directory = world.path / name
        write(directory / f"data/train{suffix}", rows(2))
        write(directory / f"data/test{suffix}", rows(3, 7))
        publish_revision(world.hub.root / "datasets", name, directory, "upload")
    whole = {"dataset_name": None}
    result = world.run(
        task("lines", dataset_path="demo/lines", **whole), task("table", dataset_path="demo/table", **whole)
    )
    assert world.prompts(result) == [row["question"] for row in rows(3, 7)] * 2


def test_files_that_a_task_names_are_fetched_and_no_others(world: World) -> None:
    world.publish()
    files = {"dataset_name": None, "dataset_kwargs": {"data_files": {"test": "hard/test-*"}}}
    result = world.run(task(**files))
    assert world.prompts(result) == [row["question"] for row in rows(4, 1000)]
    assert not world.hub.downloads("easy/test-00000.parquet")


def test_tasks_that_bring_their_data_need_nothing_of_the_hub(world: World) -> None:
    (world.path / "tasks").mkdir()
    write(world.path / "tasks" / "own.jsonl", rows(3))
    own = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {"test": "own.jsonl"}}}
    result = world.run(task(**own), hub={"endpoint": "http://127.0.0.1:9"})
    assert result.metrics["data_sets"] == ""
    assert len(world.prompts(result)) == 3


def test_a_stopped_fetch_goes_on_at_the_same_commit_though_the_branch_has_moved(world: World) -> None:
    first = world.publish()
    world.hub.fail("status", "test-00001.parquet", times=5)
    assert world.refusal(task()).type == "HubUnavailable"
    write(world.source / "easy/test-00001.parquet", rows(9, 500))
    assert world.publish() != first
    result = world.run(task())
    assert world.held(result)[0].commit == first
    assert len(world.prompts(result)) == 10


def test_a_new_release_reads_what_the_branch_is_then(world: World) -> None:
    world.publish()
    before = world.run(task())
    write(world.source / "easy/test-00001.parquet", rows(9, 500))
    commit = world.publish()
    after = world.run(task(), release="another")
    pinned = world.run(task(), release="", revisions={NAME: commit})
    assert before.artifacts != after.artifacts == pinned.artifacts
    assert len(world.prompts(after)) == 16
    assert [name for name, _ in world.hub.downloads("test-00000.parquet")] == [
        "test-00000.parquet"
    ] * 2  # a commit each


def test_a_gated_data_set_needs_the_deployments_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.publish()
    world.hub.restrict(f"datasets/{NAME}", readers=("hf_reader",), gated="manual")
    for token in ("", "hf_stranger"):  # 401 and 403
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        error = world.refusal(task())
        assert error.type == "RepositoryGated"
        assert TOKEN_VARIABLE in error.hint
        assert f"/datasets/{NAME}" in error.hint
    monkeypatch.setenv(TOKEN_VARIABLE, "hf_reader")
    world.run(task())


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"dataset_path": "demo/nowhere"}, "NotOnTheHub", "no such repository"),
        ({"dataset_name": "tricky"}, "ConfigError", "tricky"),
        ({"dataset_name": None}, "ConfigError", "easy"),
        ({"test_split": "final"}, "ConfigError", "load it with demo/arithmetic (easy): KeyError: 'final'"),
        (
            {"dataset_kwargs": {"data_files": {"test": "nothing-*"}}},
            "ConfigError",
            "No (supported) data files found in demo/arithmetic",
        ),
    ],
)
def test_what_is_not_there_is_named(world: World, changes: dict[str, object], kind: str, message: str) -> None:
    world.publish()
    error = world.refusal(task(**changes))
    assert (error.type, message in error.message) == (kind, True), error
    assert error.hint


def test_a_data_set_that_is_a_program_is_refused_and_its_converted_copy_is_read(world: World) -> None:
    (world.source / "README.md").unlink()
    (world.source / "arithmetic.py").write_text("raise SystemExit('it ran')")
    world.publish()
    error = world.refusal(task())
    assert error.type == "ConfigError"
    assert "scripts are no longer supported, but found arithmetic.py" in error.message
    assert "refs/convert/parquet" in error.hint
    (world.source / "arithmetic.py").unlink()
    converted = world.path / "converted"
    write(converted / "easy/test/0000.parquet", rows(6))
    publish_revision(world.hub.root / "datasets", NAME, converted, "convert", branch="refs/convert/parquet")
    result = world.run(task(), revisions={NAME: "refs/convert/parquet"})
    assert len(world.prompts(result)) == 6


def test_a_directory_is_a_source_without_a_network(world: World, tmp_path: Path) -> None:
    root = tmp_path / "data sets"
    (root / "demo").mkdir(parents=True)
    world.source.rename(root / NAME)
    nowhere = {"endpoint": "http://127.0.0.1:9"}
    result = world.run(task(), source=f"file://{root}".replace(" ", "%20"), hub=nowhere)
    assert len(world.prompts(result)) == 10


def test_a_data_set_is_followed_to_its_new_name_and_a_mirror_may_serve_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = world.publish()
    publish_revision(world.hub.root / "datasets", "demo/sums", world.source, "upload")
    world.hub.restrict("datasets/demo/sums", renamed_to=NAME)
    monkeypatch.setenv("HF_ENDPOINT", world.hub.endpoint)
    result = world.run(task(dataset_path="demo/sums"), hub={"token_variable": TOKEN_VARIABLE})
    (held,) = world.held(result)
    assert (held.asked.name, held.repository, held.commit) == ("demo/sums", NAME, commit)
    assert len(world.prompts(result)) == 10


# --- lm-eval's own tasks, whose data are on a hub


GSM8K_CARD = """---
dataset_info:
- config_name: main
  features:
  - {name: question, dtype: string}
  - {name: answer, dtype: string}
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
---
"""
HELLASWAG = {
    "ind": 1, "activity_label": "Cooking", "ctx_a": "A man peels", "ctx_b": "he", "ctx": "A man peels he", "label": "1",
    "endings": ["cries.", "eats the whole potato.", "flies.", "sings."],
}  # fmt: skip


@pytest.mark.thorough
def test_tasks_of_lm_eval_are_asked_with_what_was_fetched_for_them(
    tmp_path: Path, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    solved = [{"question": f"{n} + {n}?", "answer": f"it is {2 * n}.\n#### {2 * n}"} for n in range(8)]
    write(tmp_path / "gsm8k/main/train-00000.parquet", solved)
    write(tmp_path / "gsm8k/main/test-00000.parquet", solved[:3])
    (tmp_path / "gsm8k/README.md").write_text(GSM8K_CARD)
    for split in ("train", "validation"):
        write(tmp_path / f"hellaswag/data/{split}.jsonl", [HELLASWAG] * 2)
    write(tmp_path / "arithmetic/data/single_digit_three_ops.jsonl", [{"context": "1 + 1 + 1 =", "completion": "3"}])
    (tmp_path / "arithmetic/arithmetic.py").write_text("raise SystemExit")  # not read: the task names the file
    for name in ("openai/gsm8k", "Rowan/hellaswag", "EleutherAI/arithmetic"):
        directory = tmp_path / name.partition("/")[2]
        publish_revision(local_hub.root / "datasets", name, directory, "upload")
    tasks, store = ("gsm8k", "hellaswag", "arithmetic_1dc"), open_store((tmp_path / "store").as_uri())
    config = {"tasks": list(tasks), "release": "r", "hub": {"endpoint": local_hub.endpoint}}
    result = execute(request_below(tmp_path, "eval_data", config))
    assert isinstance(result, StageResult), result
    data = store.fetch(result.artifacts["eval_data"])
    evaluation = Evaluation(tasks=tasks, served_tasks=("gsm8k",))
    loaded = confined(lambda: load_tasks(None, data, evaluation, tasks), [Path("/")])
    assert {read.repository for read in loaded.data} == {"openai/gsm8k", "Rowan/hellaswag", "EleutherAI/arithmetic"}
    sizes = {name: len(task.eval_docs) for name, task in loaded.tasks.items()}
    assert sizes == {"gsm8k": 3, "hellaswag": 2, "arithmetic_1dc": 1}

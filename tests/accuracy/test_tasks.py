"""Tasks as lm-eval loads them: its own files and ours, with data of this machine and no network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

lm_eval = pytest.importorskip("lm_eval")

import datasets

from llm_pipeline.accuracy.data_sets import RECORD_FILE, EvalDataRecord, HeldDataSet, place_of
from llm_pipeline.accuracy.scorer import task_digest
from llm_pipeline.accuracy.tasks import load_tasks, select_tasks
from llm_pipeline.artifacts.pinned import HubFile
from llm_pipeline.base.confinement import confined
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import Evaluation, TaskOptions

PACKAGE = Path(lm_eval.__file__).parent / "tasks"
COMMIT = "c" * 40
SAY = {
    "task": "say", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": ["\n"]}, "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip
PICK = SAY | {
    "task": "pick", "output_type": "multiple_choice", "doc_to_choice": ["yes", "no"], "metric_list": [{"metric": "acc"}]
}  # fmt: skip
del PICK["generation_kwargs"]
ROWS = [{"q": f"Is water {n} wet?", "a": "yes"} for n in range(4)]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(directory, *configurations, **files):
    directory.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(configurations):
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / f"{number}.yaml").write_text(text)
    for name, content in ({"rows.jsonl": lines(ROWS)} | files).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


def fetched(directory, name, **files):
    """What the stage `eval_data` makes of one data set."""
    held = []
    for path, content in files.items():
        place = place_of(directory, name, COMMIT) / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
        held.append(HubFile(path=path, size=len(content), blob_sha1="0" * 40))
    one = HeldDataSet(asked={"name": name}, repository=name, commit=COMMIT, files=tuple(held))
    (directory / RECORD_FILE).write_text(EvalDataRecord(data_sets=(one,)).model_dump_json())
    return directory


def load(directory, *names, data=None, **changes):
    return load_tasks(directory, data, Evaluation(tasks=names, served_tasks=names[:1], **changes), names)


def texts(task):
    return [task.doc_to_text(document) for document in task.eval_docs]


def test_a_task_reads_the_data_beside_its_file_and_leaves_the_directory_as_it_is(tmp_path):
    below = PICK | {"include": "../base", "task": "pick"}
    directory = write(tmp_path / "tasks", SAY, **{"below/pick.yaml": json.dumps(below), "base": "tag: all\n"})
    before = sorted(directory.rglob("*"))
    loaded = confined(lambda: load(directory, "say", "pick"), [Path("/")])
    assert {name: texts(task) for name, task in loaded.tasks.items()} == {
        name: [row["q"] for row in ROWS] for name in ("pick", "say")
    }
    assert sorted(directory.rglob("*")) == before
    assert (loaded.selected.groups, loaded.selected.tags, loaded.data) == ({}, {}, ())
    assert loaded.tasks["say"].config.dataset_kwargs == SAY["dataset_kwargs"]


def test_a_task_is_the_same_wherever_its_file_lies(tmp_path):
    digests = set()
    for place in (tmp_path / "one", tmp_path / "another/place"):
        digests.add(task_digest(load(write(place, SAY), "say").tasks["say"]))
    digests.add(task_digest(load(write(tmp_path / "other", SAY | {"doc_to_text": "{{q}}?"}), "say").tasks["say"]))
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("kind", "files", "options"),
    [
        ("json", {"a.json": '[{"q": "1", "a": "1"}]', "b.jsonl": '{"q": "2\u2028", "a": "2"}\n'}, {}),
        ("json", {"a.json": '{"rows": [{"q": "1", "a": "1"}, {"q": "2", "a": "1"}]}'}, {"field": "rows"}),
        ("csv", {"a.csv": 'q,a\n"x\ny",1\n2,1\n'}, {}),
    ],
)
def test_data_of_each_kind_are_read(tmp_path, kind, files, options):
    named = {"test": sorted(files)} | ({"test": "a.*"} if len(files) == 1 else {})
    task = SAY | {"dataset_path": kind, "dataset_kwargs": {"data_files": named, **options}}
    assert len(texts(load(write(tmp_path, task, **files), "say").tasks["say"])) == 2
    parquet = write(tmp_path / "parquet", task | {"dataset_path": "parquet", "dataset_kwargs": {"data_files": named}})
    for name in files:
        datasets.Dataset.from_list(ROWS[:1] * (2 // len(files))).to_parquet(parquet / name)
    assert len(texts(load(parquet, "say").tasks["say"])) == 2


def test_a_group_is_one_sample_a_tag_is_a_label_and_what_groups_say_reaches_their_tasks(tmp_path):
    more = [PICK | {"task": name, "tag": ["odd"]} for name in ("one", "two", "three")]
    inner = {"group": "inner", "task": ["two", {"task": "three", "description": "own"}], "description": "inner"}
    outer = {"group": "outer", "task": ["one", inner], "num_fewshot": 1, "aggregate_metric_list": [{"metric": "acc"}]}
    options = {"outer": TaskOptions(num_fewshot=3, metric="acc"), "three": TaskOptions(num_fewshot=2)}
    loaded = load(write(tmp_path, SAY, *more, outer), "outer", "say", task_options=options)
    assert (loaded.selected.groups, loaded.selected.tags) == ({"outer": ("one", "three", "two")}, {})
    assert list(loaded.tasks) == ["one", "say", "three", "two"]
    assert {name: task.config.description for name, task in loaded.tasks.items()} == {
        "one": "", "say": "", "three": "own", "two": "inner"
    }  # fmt: skip
    assert {name: task.config.num_fewshot for name, task in loaded.tasks.items()} == {
        "one": 3, "say": 0, "three": 2, "two": 3
    }  # fmt: skip
    assert loaded.selected.options["three"] == TaskOptions(num_fewshot=2, metric="acc")
    tagged = load(tmp_path, "odd", "one")
    assert (tagged.selected.groups, tagged.selected.tags) == ({}, {"odd": ("one", "three", "two")})
    assert load(tmp_path, "outer").tasks["one"].config.num_fewshot == 1
    with pytest.raises(ConfigError, match="task one is asked twice"):
        load(tmp_path, "outer", "one")


def test_nested_groups_of_lm_eval_are_asked_with_what_was_fetched_and_no_network(tmp_path):
    shutil.copytree(PACKAGE / "mmlu/default", tmp_path / "tasks")
    rows = [{"question": f"Is {n} wet?", "choices": ["no", "yes", "so", "if"], "answer": 1} for n in range(6)]
    subjects = [path.stem.removeprefix("mmlu_") for path in (tmp_path / "tasks").glob("mmlu_*.yaml")]
    files = {f"{one}/{split}.jsonl": lines(rows) for one in subjects for split in ("test", "dev")}
    splits = [[{"split": split, "path": f"{one}/{split}.jsonl"} for split in ("test", "dev")] for one in subjects]
    configs = [{"config_name": one, "data_files": own} for one, own in zip(subjects, splits, strict=True)]
    card = f"---\nconfigs: {json.dumps(configs)}\n---\n"
    data = fetched(tmp_path / "data", "cais/mmlu", **{"README.md": card}, **files)
    loaded = confined(
        lambda: load(tmp_path / "tasks", "mmlu", data=data, task_options={"mmlu_stem": TaskOptions(num_fewshot=2)}),
        [Path("/")],
    )
    assert (len(loaded.tasks), loaded.selected.groups) == (57, {"mmlu": tuple(loaded.tasks)})
    assert {len(task.eval_docs) for task in loaded.tasks.values()} == {6}
    shots = [task.config.num_fewshot for task in loaded.tasks.values()]
    assert (shots.count(2), shots.count(0)) == (19, 38)
    (read,) = loaded.data
    assert (read.repository, read.commit, read.files) == ("cais/mmlu", COMMIT, 115)
    assert loaded.tasks["mmlu_anatomy"].config.dataset_path == "cais/mmlu"


@pytest.mark.thorough
def test_tasks_of_lm_eval_itself_are_found_by_name_tag_and_group(tmp_path):
    evaluation = Evaluation(tasks=("gsm8k", "mmlu", "ai2_arc", "arithmetic_1dc"), served_tasks=("gsm8k",))
    selected = select_tasks(None, evaluation, evaluation.tasks)
    assert (len(selected.groups["mmlu"]), selected.tags) == (57, {"ai2_arc": ("arc_challenge", "arc_easy")})
    assert {str(task.call) for task in selected.tasks.values() if "mmlu" not in task.name} == {
        "openai/gsm8k (main)", "allenai/ai2_arc (ARC-Easy)", "allenai/ai2_arc (ARC-Challenge)", "EleutherAI/arithmetic",
    }  # fmt: skip


def test_a_card_says_which_files_are_read_and_the_first_configuration_may_be_absent(tmp_path):
    card = "---\nconfigs:\n- config_name: easy\n  data_files: [{split: test, path: easy/*}]\n"
    card += "- config_name: hard\n  data_files: [{split: test, path: hard/*}]\n---\n"
    data = fetched(tmp_path / "data", "demo/lines", **{"README.md": card, "hard/a.jsonl": lines(ROWS)})
    record = EvalDataRecord.model_validate_json((data / RECORD_FILE).read_text())
    held = record.data_sets[0].model_copy(update={"others": ("easy/a.jsonl",)})
    (data / RECORD_FILE).write_text(EvalDataRecord(data_sets=(held,)).model_dump_json())
    hub = SAY | {"dataset_path": "demo/lines", "dataset_name": "hard", "dataset_kwargs": None}
    directory = write(tmp_path / "tasks", hub, hub | {"task": "easy", "dataset_name": "easy"})
    assert len(texts(load(directory, "say", data=data).tasks["say"])) == 4
    with pytest.raises(ConfigError, match=r"task easy in .*: lm-eval cannot load it with demo/lines .easy."):
        load(directory, "easy", data=data)
    with pytest.raises(ConfigError, match=r"lm-eval cannot load it with demo/lines .hard."):
        load(directory, "say")


@pytest.mark.parametrize(
    ("changes", "files", "message"),
    [
        ({"test_split": "final"}, {}, "cannot load it with the json data beside its file: KeyError: 'final'"),
        ({"dataset_path": "./data"}, {}, "dataset_path './data'"),
        ({"dataset_path": "demo/lines", "dataset_kwargs": {}}, {}, "lm-eval cannot load it with demo/lines"),
        ({}, {"rows.jsonl": ""}, "the file 'rows.jsonl' is empty"),
        ({}, {"rows.jsonl": '{"q": \n'}, "lm-eval cannot load it with the json data beside its file"),
        ({"num_fewshot": 0}, {}, "say takes no examples"),
        ({}, {}, "task_options names pik"),
        ({"output_type": "loglikelihood_rolling"}, {}, "task say: a perplexity is no share"),
        ({"doc_to_text": "{{q"}, {}, r"task say in .*0\.yaml: lm-eval cannot load it with .*: TemplateSyntaxError"),
        ({"metric_list": [{"metric": "exact_match"}], "process_results": "!function steps.all"}, {}, "allow_task_code"),
    ],
)
def test_what_cannot_be_asked_is_one_error_that_says_what_to_do(tmp_path, changes, files, message):
    option = "pik" if "pik" in message else "say"
    text = json.dumps(SAY | changes).replace('"!function steps.all"', "!function steps.all")
    with pytest.raises(ConfigError, match=message):
        load(write(tmp_path, text, **files), "say", task_options={option: TaskOptions(num_fewshot=2)})


def test_python_beside_a_task_runs_once_it_is_allowed_and_a_missing_package_is_named(tmp_path):
    text = json.dumps(SAY).replace('"{{q}}"', "!function steps.text")
    write(tmp_path, text, **{"steps.py": "def text(document):\n    return document['q'].upper()\n"})
    assert texts(load(tmp_path, "say", allow_task_code=True).tasks["say"])[0] == "IS WATER 0 WET?"
    write(tmp_path, text.replace("steps.", "more."), **{"more.py": "import a_package_of_nobody\n"})
    with pytest.raises(ConfigError, match="No module named 'a_package_of_nobody'"):
        load(tmp_path, "say", allow_task_code=True)


@pytest.mark.thorough
def test_a_name_that_neither_the_directory_nor_lm_eval_has_is_refused(tmp_path):
    group = {"group": "both", "task": ["say", "gsm8k", "gsm9k"]}
    with pytest.raises(ConfigError, match="no task gsm9k, neither in the task directory nor in lm-eval"):
        load(write(tmp_path, SAY, group), "both")

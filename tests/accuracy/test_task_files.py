from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_pipeline.accuracy.task_files import read_task_directory
from llm_pipeline.base.errors import ConfigError


def task_output_types(directory):
    defined = read_task_directory(directory)
    return {name: defined.output_type(name) for name in defined.tasks}


def task_document_counts(directory):
    defined = read_task_directory(directory)
    return {name: count for name in defined.tasks if (count := defined.documents(name)) is not None}


DEMO = Path(__file__).parents[2] / "configs" / "tasks" / "demo"


def test_what_a_task_asks_for_is_known_without_the_harness():
    assert task_output_types(DEMO) == {"demo_choice": "multiple_choice", "demo_generate": "generate_until"}


def test_documents_are_counted_where_they_lie_beside_the_task(tmp_path):
    assert task_document_counts(DEMO) == {"demo_choice": 600, "demo_generate": 3000}
    (tmp_path / "a.yaml").write_text("task: a\ndataset_path: some/hub_dataset\ntest_split: test\n")
    assert task_document_counts(tmp_path) == {}


def test_a_document_may_hold_any_kind_of_line_break(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "task: a\ntest_split: test\ndataset_path: json\ndataset_kwargs: {data_files: {test: a.jsonl}}\n"
    )
    rows = [{"text": "one\u2028two\x85three"}, {"text": "four"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert task_document_counts(tmp_path) == {"a": 2}


def test_a_task_that_does_not_say_generates(tmp_path):
    (tmp_path / "a.yaml").write_text("task: a\n")
    assert task_output_types(tmp_path) == {"a": "generate_until"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("task: a\ndoc_to_text: !function module.name\n", "runs Python of its own .`!function module.name`"),
        ("tasks: a\n", "needs `task"),
        (
            "task: a\ntest_split: test\ndataset_path: json\ndataset_kwargs: {data_files: {test: ../secret.jsonl}}\n",
            "outside",
        ),
        (
            "task: a\ntest_split: test\ndataset_path: json\ndataset_kwargs: {data_files: {test: absent.jsonl}}\n",
            "unreadable task data",
        ),
    ],
)
def test_a_bad_task_file_is_refused(tmp_path, content, message):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        task_document_counts(tmp_path)


def test_two_files_of_one_task_are_refused(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("task: same\n")
    with pytest.raises(ConfigError, match="another file has task same"):
        task_output_types(tmp_path)


def write(directory, **files):
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def data(kind, files, **options):
    return {"dataset_path": kind, "dataset_kwargs": {"data_files": files, **options}}


def test_groups_tags_and_includes_are_read_in_every_directory_below(tmp_path):
    write(
        tmp_path,
        parts__one_yaml={"include": "../base_template", "task": "one", "tag": ["odd", "all"]},
        parts__two_yaml={"include": "_more.yaml", "task": "two", "tag": "all"},
        base_template="output_type: multiple_choice\ntask_list: [x]\n",
        whole_yaml={"group": "whole", "task": ["one", {"group": "inner", "task": ["two", "elsewhere"]}]},
    )
    (tmp_path / "parts" / "_more.yaml").write_text("include: ../base_template\ntest_split: test\n")
    defined = read_task_directory(tmp_path)
    assert (sorted(defined.tasks), sorted(defined.groups)) == (["one", "two"], ["whole"])
    assert defined.tags == {"all": ("one", "two"), "odd": ("one",)}
    assert (defined.output_type("one"), defined.output_type("two")) == ("multiple_choice", "multiple_choice")
    assert "task_list" not in defined.tasks["one"].configuration
    assert defined.reached(["whole"]) == ({"whole", "one", "two"}, {"elsewhere"})
    assert defined.reached(["odd"]) == ({"odd", "one"}, set())


@pytest.mark.parametrize(
    ("configuration", "count"),
    [
        (data("json", {"test": "rows.jsonl"}), 3),
        (data("json", {"test": ["rows.jsonl", "array.json"]}), 5),
        (data("json", {"test": "a*.json"}), 2),
        (data("json", {"test": "held.json"}, field="rows"), 1),
        (data("json", {"test": "rows.jsonl"}, data_dir="."), 3),
        (data("csv", {"test": "rows.csv"}), 2),
        (data("text", {"test": "lines.txt"}), 2),
        (data("json", "rows.jsonl") | {"test_split": "train"}, 3),
        (data("parquet", {"test": "rows.jsonl"}), None),
    ],
)
def test_documents_of_each_kind_are_counted(tmp_path, configuration, count):
    write(
        tmp_path,
        below__a_yaml={"task": "a", "test_split": "test", **configuration},
        **{
            "below__rows.jsonl": '{"a": 1}\n{"a": 2}\n\n{"a": 3}\n',
            "array.json": '\n [{"a": 1}, {"a": 2}]',
            "held.json": '{"rows": [{"a": 1}]}',
            "rows.csv": 'a,b\n1,"x\ny"\n2,z\n',
            "lines.txt": "one\ntwo\n",
        },
    )
    assert read_task_directory(tmp_path).documents("a") == count


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_yaml": {"task": "a", "include": "../out.yaml"}}, "included file '../out.yaml' is outside"),
        ({"a_yaml": {"task": "a", "include": "none.yaml"}}, "included file 'none.yaml' does not exist"),
        ({"a_yaml": {"task": "a", "include": "a.yaml"}}, "includes itself"),
        ({"a_yaml": {"group": "a", "task": "b"}}, "a group needs a list"),
        (
            {"a_yaml": {"group": ["a"], "task": "b"}},
            "a label of one task is its `tag`",
        ),  # as lm-eval had it before 0.4.4
        ({"a_yaml": {"group": "a", "task": ["b", {"group": "c", "task": ["a"]}]}}, "among its own members"),
        ({"a_yaml": {"task": "a", "include": 5}}, "include is '5', not a name"),
        ({"a_yaml": {"task": "a", "include": "x" * 300}}, "include is 'x+', not a name"),
        ({"a_yaml": {"task": "a", "tag": [["b"]]}}, "tag is .* not a name"),
        ({"a_yaml": {"task": "a", "output_type": "generate_unti"}}, "output_type is 'generate_unti'"),
        ({"a_yaml": {"task": "a", "test_split": "test", **data("json", {"test": 5})}}, "data_files is '5', not a name"),
        ({"a_yaml": {"task": "a", "test_split": ["dev"], **data("json", {"test": "a.yaml"})}}, "no split"),
        ({"a_yaml": {"group": "a", "task": [1]}}, "neither a name nor a task"),
        ({"a_yaml": {"group": "a", "task": [{"task": "b", "dataset_path": "json"}]}}, "task file of its own"),
        ({"a_yaml": {"group": "a", "task": ["b"], "dataset_kwargs": {}}}, "state it in its tasks' files"),
        ({"a_yaml": {"task": "a", "test_split": "test", **data("json", {"test": "https://x/y"})}}, "not in the task"),
        ({"a_yaml": {"task": "a", "test_split": "test", **data("json", {"test": "/etc/passwd"})}}, "outside"),
        ({"a_yaml": {"task": "a", "test_split": "test", **data("json", {"test": "*.none"})}}, "does not exist"),
        ({"a_yaml": {"task": "a", "test_split": "test", **data("json", {"dev": "a.yaml"})}}, "no split 'test'"),
        ({"a_yaml": {"task": "a", "test_split": "test", "dataset_path": "json"}}, "needs dataset_kwargs.data_files"),
        ({"a_yaml": {"task": "a", "test_split": "test", "dataset_path": "./data"}}, "is a path"),
        (
            {"a_yaml": {"task": "a", "test_split": "test", **data("json", {"test": "l"})}, "l": "1\n"},
            "not a JSON object",
        ),
        ({"a_yaml": {"task": "a", "test_split": "test", **data("json", {"test": "l"})}, "l": "\n"}, "no document"),
        (
            {
                "a_yaml": {
                    "task": "a",
                    "test_split": "test",
                    "dataset_path": "json",
                    "dataset_kwargs": {"field": "data", "data_files": {"test": "l"}},
                },
                "l": "[1]",
            },
            "unreadable task data",
        ),
    ],
)
def test_what_a_directory_cannot_mean_is_refused(tmp_path, files, message):
    write(tmp_path, **files)
    with pytest.raises(ConfigError, match=message):
        read_task_directory(tmp_path).documents("a")


def test_a_link_out_of_the_directory_is_refused(tmp_path):
    inner = tmp_path / "inner"
    write(inner, a_yaml={"task": "a", "test_split": "test", **data("json", {"test": "rows.jsonl"})})
    (tmp_path / "secret.jsonl").write_text('{"a": 1}\n')
    (inner / "rows.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(ConfigError, match="outside the task directory"):
        read_task_directory(inner).documents("a")
    (inner / "b.yaml").symlink_to(tmp_path / "b.yaml")
    (tmp_path / "b.yaml").write_text("task: b\n")
    with pytest.raises(ConfigError, match="outside the task directory"):
        read_task_directory(inner)

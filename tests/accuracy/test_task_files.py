"""Task files as `plan` reads them, without lm-eval."""

from __future__ import annotations

import json

import pytest

from llm_pipeline.accuracy.task_files import read_task_directory
from llm_pipeline.base.errors import ConfigError

TASK = {"task": "a", "test_split": "test"}


def write(directory, **files):
    for name, content in files.items():
        path = directory / name.replace("__", "/").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        path.write_bytes(text.encode() if isinstance(text, str) else text)


def data(kind, files, **options):
    return TASK | {"dataset_path": kind, "dataset_kwargs": {"data_files": files, **options}}


@pytest.mark.parametrize(
    ("task", "count"),
    [
        (data("json", {"test": "rows.jsonl"}), 3),
        (data("json", {"test": "m*.jsonl"}), 2),
        (data("json", {"test": "array.json"}), None),
        (data("json", {"test": "rows.jsonl"}, field="rows"), None),
        (data("csv", {"test": "rows.csv"}), None),
        (TASK | {"dataset_path": "some/hub_dataset"}, None),
        (data("text", {"test": "lines.txt"}), 2),
        (data("json", "rows.jsonl") | {"test_split": "train"}, 3),
    ],
)
def test_documents_of_each_kind_are_counted(tmp_path, task, count):
    write(
        tmp_path,
        below__a_yaml=task,
        **{
            "below__rows.jsonl": '{"a": "1\u2028"}\n{"a": 2}\n\n{"a": 3}\n',
            "more.jsonl": '{"a": 1}\n{"a": 2}',
            "array.json": '\n [{"a": 1}, {"a": 2}]',
            "rows.csv": "a,b\n1,x\n",
            "lines.txt": "one\ntwo\n",
        },
    )
    assert read_task_directory(tmp_path).documents("a") == count


def test_groups_tags_and_includes_are_read_in_every_directory_below(tmp_path):
    write(
        tmp_path,
        parts__one_yaml={"include": "../base", "task": "one", "tag": ["odd", "all"]},
        parts__two_yaml={"include": "more.yaml", "task": "two", "tag": "all"},
        parts__more_yaml="include: ../base\ntest_split: test\n",
        base="output_type: multiple_choice\n",
        whole_yaml={"group": "whole", "task": ["one", {"group": "inner", "task": ["two", "elsewhere"]}]},
    )
    defined = read_task_directory(tmp_path)
    assert (sorted(defined.tasks), sorted(defined.groups)) == (["one", "two"], ["whole"])
    assert defined.tasks["two"].content["output_type"] == "multiple_choice"
    assert defined.behind(["whole"]) == ({"one", "two"}, {"elsewhere"})
    assert defined.behind(["odd", "all"]) == ({"one", "two"}, set())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_yaml": "task: a\ndoc_to_text: [!function module.name]\n"}, "Python of its own .`!function module.name`"),
        ({"a_yaml": "task: [a\n"}, "a.yaml:"),
        ({"a_yaml": TASK, "b_yaml": TASK}, "another file has task a"),
        ({"a_yaml": {"group": ["a"], "task": "b"}}, "with a list of tasks"),
        ({"a_yaml": TASK | {"include": "../out.yaml"}}, "included file '../out.yaml' is outside"),
        ({"a_yaml": TASK | {"include": "none.yaml"}}, "included file 'none.yaml' does not exist"),
        ({"a_yaml": data("json", {"test": "/etc/passwd"})}, "outside"),
        ({"a_yaml": data("json", {"test": "*.none"})}, "does not exist"),
        ({"a_yaml": data("json", {"dev": "a.yaml"})}, "no split 'test'"),
        ({"a_yaml": TASK | {"dataset_path": "json"}}, "needs dataset_kwargs.data_files"),
        ({"a_yaml": data("json", {"test": "l"}), "l": b"\xff"}, "unreadable task data"),
    ],
)
def test_what_a_directory_cannot_mean_is_refused(tmp_path, files, message):
    write(tmp_path, **files)
    with pytest.raises(ConfigError, match=message):
        read_task_directory(tmp_path).documents("a")


def test_a_link_out_of_the_directory_is_refused(tmp_path):
    inner = tmp_path / "inner"
    write(inner, a_yaml=data("json", {"test": "rows.jsonl"}))
    (tmp_path / "secret.jsonl").write_text('{"a": 1}\n')
    (inner / "rows.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(ConfigError, match="outside the task directory"):
        read_task_directory(inner).documents("a")

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_pipeline.accuracy.task_files import read_task_directory
from llm_pipeline.errors import ConfigError


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

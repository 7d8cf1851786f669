from __future__ import annotations

import json

import pytest
from judging import gpu_target

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.policy import AccuracyPolicy, CanaryPolicy
from llm_pipeline.config.release import Evaluation, TaskOptions
from llm_pipeline.planning.task_pool import (
    TaskItems,
    canary_warnings,
    check_tasks,
    gate_warnings,
    judge_task_placement,
    task_modules,
    task_pool,
)

PICK = {
    "task": "pick", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "multiple_choice", "metric_list": [{"metric": "mcc"}],
}  # fmt: skip


def evaluation(*names, **changes):
    return Evaluation(tasks=names, served_tasks=names[:1], **changes)


@pytest.fixture
def local(tmp_path):
    """Writes task files and gives the evaluation of one of them, with the place of its directory."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "rows.jsonl").write_text('{"q": 1}\n{"q": 2}\n')

    def write(*tasks, **changes):
        for number, task in enumerate(tasks):
            (tmp_path / "tasks" / f"{number}.yaml").write_text(task if isinstance(task, str) else json.dumps(task))
        return evaluation(changes.pop("name", "pick"), task_directory="tasks", **changes), tmp_path

    return write


def test_options_of_a_task_that_is_not_asked_are_refused(local):
    plain = {key: value for key, value in PICK.items() if key != "metric_list"}
    with pytest.raises(ConfigError, match="task_options names pik"):
        check_tasks(*local(plain, task_options={"pik": TaskOptions(metric="acc")}))


def test_code_that_the_model_writes_needs_a_permission(local):
    with pytest.raises(ConfigError, match="humaneval runs code that the model writes"):
        check_tasks(evaluation("humaneval"), local()[1])
    assert check_tasks(evaluation("humaneval", allow_generated_code=True), local()[1])
    with pytest.raises(ConfigError, match="pick runs code that the model writes"):
        check_tasks(*local({"task": "pick", "unsafe_code": True}))


def test_modules_that_tasks_need_are_asked_for(local):
    asked = evaluation("ifeval", "gsm8k")
    assert task_modules(asked) == {"ifeval": ("immutabledict", "langdetect", "nltk")}
    (warning,) = check_tasks(asked, local()[1])
    assert "ifeval needs the Python modules immutabledict, langdetect, nltk" in warning
    with pytest.raises(ConfigError, match=r"runs Python of its own .`!function steps\.first`"):
        check_tasks(*local("task: pick\nprocess_docs: !function steps.first\n"))


def test_a_group_of_local_tasks_has_the_documents_of_all_of_them(local):
    other, group = PICK | {"task": "other"}, {"group": "both", "task": ["pick", "other"]}
    (task,) = task_pool(*local(PICK, other, group, name="both"))
    assert (task.items, task.output_type, task.local) == (4, "multiple_choice", True)
    hub = {key: value for key, value in PICK.items() if key != "dataset_kwargs"} | {"dataset_path": "demo/lines"}
    (task,) = task_pool(*local(hub, other, group, name="both"))
    assert (task.items, task.output_type, task.local) == (None, "multiple_choice", False)


def pool(**items: int | None) -> list[TaskItems]:
    return [TaskItems(name=name, items=number) for name, number in items.items()]


def test_a_canary_that_never_sees_enough_is_told():
    policy = CanaryPolicy(steps_percent=(1, 50, 100))
    (warning,) = canary_warnings(policy, 2.0)
    assert warning.startswith("canary: minimum_requests 50 take 41 min 40 s at 1 %: beyond maximum_bake_seconds")
    assert warning.endswith("from 2.8 % on it would decide")
    assert not list(canary_warnings(policy, 200.0))


def test_a_task_too_small_for_its_own_margin_is_told():
    (warning,) = gate_warnings("accuracy", pool(large=5000, small=110), AccuracyPolicy())
    assert warning.startswith("accuracy: small: 110 items are too few for a margin of 3 points")
    assert warning.endswith("344 items or a margin of 5.4 points would do")


def test_a_pool_that_is_not_known_is_not_judged():
    (warning,) = gate_warnings("accuracy", pool(known=5000, other=None), AccuracyPolicy())
    assert "how many items other have is not known here" in warning


def test_tasks_of_which_nothing_is_known_are_a_warning():
    refusals, (warning,) = judge_task_placement(pool(other=None), ["other"], [gpu_target(engine="tensorrt_llm_engine")])
    assert refusals == ()
    assert "whether other are generative is not known here" in warning

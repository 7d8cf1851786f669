from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from llm_pipeline.accuracy.lm_eval_checkpoint import evaluate_checkpoint
from llm_pipeline.accuracy.lm_eval_results import scored_items, task_manager
from llm_pipeline.config.release import Evaluation
from llm_pipeline.errors import ConfigError, IntegrityError

TASKS = Path(__file__).parents[2] / "configs" / "tasks" / "demo"
EVALUATION = Evaluation(
    tasks=("demo_generate", "demo_choice"),
    served_tasks=("demo_generate",),
    limit=60,
    batch_size=32,
    maximum_length=128,
)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The tasks where the store would put them: another place, read-only."""
    directory = tmp_path_factory.mktemp("store") / "dataset"
    shutil.copytree(TASKS, directory)
    for path in [*directory.iterdir(), directory]:
        os.chmod(path, 0o555 if path.is_dir() else 0o444)  # noqa: PTH101
    yield directory
    directory.chmod(0o755)


@pytest.fixture(scope="module")
def evaluated(source, elsewhere):
    return evaluate_checkpoint(source, elsewhere, EVALUATION, "float16")


def test_every_item_is_scored_and_can_be_paired(evaluated):
    assert len(evaluated.items) == 120
    assert len({(item.task, item.item_id) for item in evaluated.items}) == 120
    assert len({item.fingerprint for item in evaluated.items}) == 120
    assert {item.score for item in evaluated.items} == {0.0, 1.0}


def test_generative_items_keep_prompt_and_completion(evaluated):
    generative = [item for item in evaluated.items if item.generative]
    assert len(generative) == 60
    assert all(item.prompt for item in generative)
    assert any(item.completion for item in generative)
    assert not any(item.prompt for item in evaluated.items if not item.generative)


def test_the_summary_counts_and_averages(evaluated):
    choice = [item.score for item in evaluated.items if item.task == "demo_choice"]
    assert evaluated.summary.tasks["demo_choice"].items == 60
    assert evaluated.summary.tasks["demo_choice"].accuracy == pytest.approx(sum(choice) / 60)
    assert evaluated.summary.versions["lm_eval"]


def test_the_same_checkpoint_gives_the_same_answers_wherever_the_tasks_lie(source, evaluated):
    again = evaluate_checkpoint(source, TASKS, EVALUATION, "float16")
    assert again.items == evaluated.items


def test_another_checkpoint_is_never_given_the_first_ones_answers(evaluated, quantized, elsewhere):
    other = evaluate_checkpoint(quantized("int4_naive")[0], elsewhere, EVALUATION, "float16")
    assert [item.fingerprint for item in other.items] == [item.fingerprint for item in evaluated.items]
    assert [item.completion for item in other.items] != [item.completion for item in evaluated.items]


def test_an_unknown_task_is_named(source, elsewhere):
    evaluation = EVALUATION.model_copy(update={"tasks": ("demo_other",)})
    with pytest.raises(ConfigError, match="demo_other"):
        evaluate_checkpoint(source, elsewhere, evaluation, "float16")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("task: a\ndoc_to_text: !function module.name\n", "not plain YAML"),
        ("tasks: a\n", "needs `task"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {data_files: {test: ../secret.jsonl}}\n", "outside"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {data_files: {test: absent.jsonl}}\n", "unreadable task data"),
    ],
)
def test_a_bad_task_file_is_refused(tmp_path, content, message):
    (tmp_path / "a.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        task_manager(tmp_path)


def sample(item_id, filter_name="none", **changes):
    return {
        "doc_id": item_id, "doc_hash": f"d{item_id}", "prompt_hash": "p", "target_hash": "t", "filter": filter_name,
        "arguments": [("prompt", {})], "resps": [[" answer"]], "metrics": ["exact_match"], "exact_match": 1.0,
        **changes,
    }  # fmt: skip


def test_one_score_an_item_when_a_task_has_several_filters():
    samples = [sample(1, "strict"), sample(0, "strict"), sample(0, "flexible"), sample(1, "flexible")]
    items = scored_items({"samples": {"gsm": samples}}, ["gsm"])
    assert [item.item_id for item in items] == [0, 1]


def test_a_group_stands_for_its_subtasks():
    results = {"samples": {"a": [sample(0)], "b": [sample(0)]}, "group_subtasks": {"both": ["a", "b"]}}
    assert [item.task for item in scored_items(results, ["both"])] == ["a", "b"]


def test_an_item_without_a_known_metric_has_no_score():
    items = scored_items({"samples": {"a": [sample(0, metrics=["bleu"])]}}, ["a"])
    assert items[0].score is None


def test_missing_or_repeated_samples_are_refused():
    with pytest.raises(IntegrityError, match="no samples"):
        scored_items({"samples": {}}, ["a"])
    with pytest.raises(IntegrityError, match="two samples"):
        scored_items({"samples": {"a": [sample(0), sample(0)]}}, ["a"])

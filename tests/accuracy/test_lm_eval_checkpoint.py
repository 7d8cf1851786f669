from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import Evaluation

sys.path.insert(0, str(Path(__file__).parent))

from whole_evaluation import evaluate_checkpoint

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
    other = evaluate_checkpoint(quantized("int4_naive"), elsewhere, EVALUATION, "float16")
    assert [item.fingerprint for item in other.items] == [item.fingerprint for item in evaluated.items]
    assert [item.completion for item in other.items] != [item.completion for item in evaluated.items]


def test_an_unknown_task_is_named(source, elsewhere):
    evaluation = EVALUATION.model_copy(update={"tasks": ("demo_other",)})
    with pytest.raises(ConfigError, match="demo_other"):
        evaluate_checkpoint(source, elsewhere, evaluation, "float16")


def test_lm_evals_own_scoring_gives_the_same_accuracy(source, evaluated):
    """What a benchmark compares with: `hf` as it is, a sequence for each choice."""
    own = evaluate_checkpoint(source, TASKS, EVALUATION, "float16", shared_prefix=False)
    assert own.summary.scoring.startswith("a sequence for each choice")
    changed = [a.item_id for a, b in zip(own.items, evaluated.items, strict=True) if a.score != b.score]
    assert len(changed) <= 1  # half precision rounds log-likelihoods into ties

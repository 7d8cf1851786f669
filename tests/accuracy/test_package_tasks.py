"""Task files as lm-eval ships them, copied beside tiny data: each is asked, and judged by the metric of its field."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

lm_eval = pytest.importorskip("lm_eval")

sys.path.insert(0, str(Path(__file__).parent))

from small_tasks import write_chat_model

from llm_pipeline.accuracy.scorer import Scorer, checkpoint_model
from llm_pipeline.accuracy.tasks import load_tasks
from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.config.release import Evaluation, TaskOptions

PACKAGE = Path(lm_eval.__file__).parent / "tasks"
GSM8K = {"question": "What is 9 times 2?", "answer": "9 * 2 is 18.\n#### 18"}
ARC = {"question": "What is wet?", "choices": {"text": ["fire", "water"], "label": ["A", "B"]}, "answerKey": "B"}
SPANS = {"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": ["the blue team"]}
DROP = {
    "passage": "The blue team won.", "question": "Who won?", "query_id": "q", "section_id": "s",
    "answer": SPANS | {"worker_id": "", "hit_id": ""},
    "validated_answers": {"number": [], "date": [], "spans": [], "worker_id": [], "hit_id": []},
}  # fmt: skip
TRUTHFUL = {
    "type": "a", "category": "b", "question": "Is the earth flat?", "best_answer": "No", "source": "c",
    "correct_answers": ["No", "It is round"], "incorrect_answers": ["Yes", "It is flat"],
}  # fmt: skip
PRO = {
    "question": "q", "options": ["a", "b"], "answer": "A", "answer_index": 0, "category": "biology",
    "cot_content": "A: so (A).", "src": "s",
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("model"), positions=8192)


def copied(directory, folder, *rows, **splits):
    """The task files of a folder of lm-eval, with documents of ours in all splits that are not given."""
    shutil.copytree(PACKAGE / folder, directory, dirs_exist_ok=True)
    names = {}
    for split in ("train", "validation", "test", "dev"):
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in splits.get(split, rows)))
        names[split] = f"{split}.jsonl"
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {json.dumps(names)}}}"
    for path in directory.rglob("*yaml"):
        text = re.sub(r'^"?dataset_name"?:.*$', "", path.read_text(), flags=re.MULTILINE)
        path.write_text(re.sub(r"^dataset_path:.*$", lambda _: data, text, flags=re.MULTILINE))
    return directory


def tried(checkpoint, directory, *names, **changes):
    asked = Evaluation(tasks=names, served_tasks=names[:1], batch_size=8, maximum_length=8192, **changes)
    tokenizer = load_tokenizer(checkpoint)
    model = checkpoint_model("hf", checkpoint, tokenizer, asked, "float32")
    scorer = Scorer(model, tokenizer, load_tasks(directory, None, asked, names), asked, Path(os.devnull))
    scorer.try_tasks()
    return scorer


def test_gsm8k_is_read_by_its_last_number_and_shown_its_examples(checkpoint, tmp_path):
    copied(tmp_path, "gsm8k", *[GSM8K] * 8)
    metric = tried(checkpoint, tmp_path, "gsm8k").metrics["gsm8k"]
    assert (metric.metric, metric.filter, metric.few_shots) == ("exact_match", "flexible-extract", 5)
    options = {"gsm8k": TaskOptions(filter="strict-match", num_fewshot=2)}
    strict = tried(checkpoint, tmp_path, "gsm8k", task_options=options)
    assert (strict.metrics["gsm8k"].filter, strict.metrics["gsm8k"].few_shots) == ("strict-match", 2)
    assert strict.ask([("gsm8k", 1)])[0].prompt.count("Question:") == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("folder", "name", "document", "metric"),
    [
        ("arc", "arc_challenge", ARC, "acc_norm"),
        ("drop", "drop", DROP, "f1"),
        ("truthfulqa", "truthfulqa_gen", TRUTHFUL, "bleu_acc"),
        ("mmlu_pro", "mmlu_pro_biology", PRO, "exact_match"),
        ("hendrycks_math", "hendrycks_math_algebra", {"problem": "1", "solution": "\\boxed{1}"}, "exact_match"),
    ],
)
def test_each_task_has_one_score_an_item(checkpoint, tmp_path, folder, name, document, metric):  # noqa: PLR0917
    scorer = tried(checkpoint, copied(tmp_path, folder, *[document] * 6), name, allow_task_code=True)
    assert scorer.metrics[name].metric == metric
    assert None not in [item.score for item in scorer.ask([(name, number) for number in range(6)])]

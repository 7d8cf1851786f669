"""Task files as lm-eval ships them, copied beside tiny data: how each of them is asked, and what it is judged by."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

lm_eval = pytest.importorskip("lm_eval")

from lm_eval.api.model import LM

from llm_pipeline.accuracy.evaluation import TaskGroup
from llm_pipeline.accuracy.questions import Questions
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import Evaluation, TaskOptions

PACKAGE = Path(lm_eval.__file__).parent / "tasks"
GSM8K = {"question": "What is 9 times 2?", "answer": "9 * 2 is 18.\n#### 18"}
ARC = {"question": "What is wet?", "choices": {"text": ["fire", "water"], "label": ["A", "B"]}, "answerKey": "B"}
HELLASWAG = {
    "ind": 1, "activity_label": "Cooking", "ctx_a": "A man peels", "ctx_b": "he", "label": "1",
    "endings": ["cries.", "eats the whole potato.", "flies.", "sings."],
}  # fmt: skip
MMLU = {"question": "What is wet?", "choices": ["fire", "water", "sand", "air"], "answer": 1}
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


class Saying(LM):
    """Says one text, and gives each text a likelihood by its length."""

    def __init__(self, text=""):
        super().__init__()
        self.text, self.prompts = text, []

    def loglikelihood(self, requests):
        self.prompts += [one.args[0] for one in requests]
        return [(-float(len(one.args[1])), False) for one in requests]

    def loglikelihood_rolling(self, requests):
        return [-2.0 * len(one.args[0].encode()) for one in requests]

    def generate_until(self, requests):
        self.prompts += [one.args[0] for one in requests]
        return [self.text] * len(requests)


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


def load(directory, *names, **changes):
    return Questions.load(directory, Evaluation(tasks=names, served_tasks=names[:1], **changes), names)


def scored(questions, text=""):
    model = Saying(text)
    order = [(task, number) for task, clusters in questions.clusters.items() for number in range(len(clusters))]
    return [item.score for item in questions.ask(model, order)], model


def test_arc_and_hellaswag_are_judged_by_the_normalised_accuracy_that_the_field_reports(tmp_path):
    arc = load(copied(tmp_path / "arc", "arc", ARC), "arc_challenge")
    metric = arc.metrics["arc_challenge"]
    assert (metric.metric, metric.filter, metric.few_shots, metric.is_share) == ("acc_norm", "none", 0, True)
    questions = load(copied(tmp_path / "hellaswag", "hellaswag", HELLASWAG), "hellaswag", allow_task_code=True)
    assert questions.metrics["hellaswag"].metric == "acc_norm"
    by_name = {"hellaswag": TaskOptions(metric="acc")}
    plain = load(tmp_path / "hellaswag", "hellaswag", allow_task_code=True, task_options=by_name)
    assert plain.metrics["hellaswag"].metric == "acc"
    assert plain.identity != questions.identity


def test_a_task_file_with_python_of_its_own_needs_a_permission(tmp_path):
    copied(tmp_path, "hellaswag", HELLASWAG)
    with pytest.raises(ConfigError, match=r"!function utils\.process_docs") as refused:
        load(tmp_path, "hellaswag")
    assert "allow_task_code: true" in refused.value.hint


def test_gsm8k_is_read_by_its_last_number_and_the_strict_reading_may_be_asked_for(tmp_path):
    copied(tmp_path, "gsm8k", *[GSM8K] * 8)
    flexible = load(tmp_path, "gsm8k")
    assert (flexible.metrics["gsm8k"].filter, flexible.metrics["gsm8k"].few_shots) == ("flexible-extract", 5)
    assert scored(flexible, "It is 18.")[0] == [1.0] * 8
    strict = load(tmp_path, "gsm8k", task_options={"gsm8k": TaskOptions(filter="strict-match", num_fewshot=2)})
    scores, model = scored(strict, "It is 18.")
    assert scores == [0.0] * 8
    assert model.prompts[0].count("Question:") == 3
    with pytest.raises(ConfigError, match="no filter 'loose'"):
        load(tmp_path, "gsm8k", task_options={"gsm8k": TaskOptions(filter="loose")})


def test_a_running_text_is_judged_by_bits_a_byte_and_less_is_better(tmp_path):
    page = {"page": " = Water = \n Water is wet . \n"}
    questions = load(copied(tmp_path, "wikitext", page), "wikitext", allow_task_code=True)
    metric = questions.metrics["wikitext"]
    assert (metric.metric, metric.higher_is_better, metric.minimum, metric.maximum) == (
        "bits_per_byte",
        False,
        0.0,
        None,
    )
    ((score,), _) = scored(questions)
    assert score == pytest.approx(2.0 / 0.6931, rel=0.2)  # of the text as it was before it was cut into tokens
    words = load(
        tmp_path, "wikitext", allow_task_code=True, task_options={"wikitext": TaskOptions(metric="word_perplexity")}
    )
    assert scored(words)[0][0] > score


def test_written_answers_are_judged_by_fractions(tmp_path):
    drop = load(copied(tmp_path / "drop", "drop", DROP), "drop", allow_task_code=True)
    assert (drop.metrics["drop"].metric, drop.metrics["drop"].is_share) == ("f1", True)
    ((score,), _) = scored(drop, "blue")
    assert 0.0 < score < 1.0


@pytest.mark.thorough
def test_written_answers_may_be_judged_by_their_likeness_to_right_ones(tmp_path):
    directory = copied(tmp_path / "truthful", "truthfulqa", TRUTHFUL)
    truthful = load(directory, "truthfulqa_gen", allow_task_code=True)
    assert truthful.metrics["truthfulqa_gen"].metric == "bleu_acc"
    by_rouge = {"truthfulqa_gen": TaskOptions(metric="rouge1_max")}
    rouge = load(directory, "truthfulqa_gen", allow_task_code=True, task_options=by_rouge)
    ((score,), _) = scored(rouge, "No")
    assert score == pytest.approx(100.0)


def test_a_metric_of_the_whole_set_is_refused_with_what_to_do(tmp_path):
    sentence = {"sentence": "Water are wet.", "label": 0}
    copied(tmp_path / "cola", "glue/cola", sentence)
    with pytest.raises(ConfigError, match="cola: mcc has no score for a single item") as refused:
        load(tmp_path / "cola", "cola")
    assert "task file of your own" in refused.value.hint
    pair = {"sentence1": "a", "sentence2": "b", "label": 1, "idx": 0}
    copied(tmp_path / "mrpc", "glue/mrpc", pair)
    assert load(tmp_path / "mrpc", "mrpc").metrics["mrpc"].metric == "acc"
    with pytest.raises(ConfigError, match="f1 has no score for a single item") as refused:
        load(tmp_path / "mrpc", "mrpc", task_options={"mrpc": TaskOptions(metric="f1")})
    assert "one of: acc" in refused.value.hint


@pytest.mark.thorough
def test_what_a_task_needs_is_missed_before_a_model_is_asked(tmp_path):
    prompt = {"key": 1, "prompt": "Say no.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    copied(tmp_path / "ifeval", "ifeval", prompt)
    try:
        import langdetect  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ConfigError, match=r"package of module (langdetect|immutabledict) is missing"):
            load(tmp_path / "ifeval", "ifeval", allow_task_code=True)
    code = {"task_id": "a", "prompt": "def f():\n", "test": "def check(f): pass", "entry_point": "f"}
    copied(tmp_path / "humaneval", "humaneval", code)
    with pytest.raises(ConfigError, match="humaneval runs code that the model writes") as refused:
        load(tmp_path / "humaneval", "humaneval", allow_task_code=True)
    assert "allow_generated_code: true" in refused.value.hint
    with pytest.raises(ConfigError):  # its metric is downloaded, and stages work offline
        load(tmp_path / "humaneval", "humaneval", allow_task_code=True, allow_generated_code=True)


@pytest.mark.thorough
def test_the_groups_of_mmlu_are_one_score_over_all_of_its_documents(tmp_path):
    copied(tmp_path, "mmlu/default", MMLU)
    questions = load(tmp_path, "mmlu", task_options={"mmlu": TaskOptions(num_fewshot=1)})
    (group,) = questions.groups
    assert (group.name, len(group.tasks), group.weighting) == ("mmlu", 57, "items")
    assert {(one.metric, one.few_shots) for one in questions.metrics.values()} == {("acc", 1)}
    stem = load(tmp_path, "mmlu_stem")
    assert stem.groups == (TaskGroup(name="mmlu_stem", tasks=tuple(sorted(stem.tasks))),)
    tagged = load(tmp_path, "mmlu_stem_tasks")
    assert (tagged.groups, tagged.tags) == ((), {"mmlu_stem_tasks": tuple(sorted(stem.tasks))})


def test_the_tasks_of_bbh_are_read_as_their_group_aggregates_them(tmp_path):
    copied(tmp_path, "bbh/cot_fewshot", {"input": "not True is", "target": "False"})
    questions = load(tmp_path, "bbh")
    (group,) = questions.groups
    assert (group.name, len(group.tasks), group.weighting) == ("bbh", 27, "items")
    assert {(one.metric, one.filter) for one in questions.metrics.values()} == {("exact_match", "get-answer")}
    scores, _ = scored(questions, "So the answer is False.")
    assert set(scores) == {1.0}


def test_a_group_of_tasks_with_different_metrics_is_only_a_label(tmp_path):
    copied(tmp_path / "choices", "arc", ARC)
    copied(tmp_path / "texts", "gsm8k", *[GSM8K] * 6)
    means = [{"metric": "acc_norm"}, {"metric": "exact_match"}]
    both = {"group": "both", "task": ["arc_easy", "gsm8k"], "aggregate_metric_list": means}
    (tmp_path / "both.yaml").write_text(json.dumps(both))
    questions = load(tmp_path, "both")
    assert (questions.groups, questions.tags) == ((), {"both": ("arc_easy", "gsm8k")})


TWO = {"choices": ["No", "Yes"], "labels": [1, 0]}
TRUTH = {"question": "q?", "mc1_targets": TWO, "mc2_targets": TWO}
COQA = {
    "id": "1", "source": "s", "story": "Water is wet.", "additional_answers": {},
    "questions": {"input_text": ["Wet?"], "turn_id": [1]},
    "answers": {"input_text": ["yes"], "answer_start": [0], "answer_end": [1], "turn_id": [1]},
}  # fmt: skip
RECORD = {
    "passage": "Water is @placeholder.", "query": "@placeholder is wet", "entities": ["Water", "Fire"],
    "answers": ["Water"], "idx": {"passage": 0, "query": 0},
}  # fmt: skip
MULTIRC = {
    "paragraph": "p",
    "question": "q",
    "answer": "a",
    "label": 1,
    "idx": {"paragraph": 0, "question": 0, "answer": 0},
}
PRO = {
    "question": "q", "options": ["a", "b"], "answer": "A", "answer_index": 0, "category": "biology",
    "cot_content": "A: so (A).", "src": "s",
}  # fmt: skip
GPQA = {"Question": "q", "Correct Answer": "a"} | {f"Incorrect Answer {n}": str(n) for n in (1, 2, 3)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("folder", "name", "document", "metric"),
    [
        ("winogrande", "winogrande", {"sentence": "_ is wet.", "option1": "It", "option2": "a", "answer": "1"}, "acc"),
        ("lambada", "lambada_openai", {"text": "Water is very wet"}, "acc"),
        ("truthfulqa", "truthfulqa_mc2", TRUTH, "acc"),
        ("coqa", "coqa", COQA, "f1"),
        ("triviaqa", "triviaqa", {"question": "q?", "answer": {"aliases": ["water"], "value": "water"}}, "exact_match"),
        ("super_glue/boolq", "boolq", {"passage": "p", "question": "q", "label": 1, "idx": 0}, "acc"),
        ("super_glue/record", "record", RECORD, "f1"),
        ("super_glue/multirc", "multirc", MULTIRC, "acc"),
        ("nq_open", "nq_open", {"question": "q?", "answer": ["water"]}, "exact_match"),
        ("translation", "wmt14-en-fr", {"translation": {"en": "Water", "fr": "Eau"}}, "chrf"),
        ("piqa", "piqa", {"goal": "g", "sol1": "a", "sol2": "b", "label": 0}, "acc_norm"),
        ("mmlu_pro", "mmlu_pro_biology", PRO, "exact_match"),
        ("gpqa/zeroshot", "gpqa_main_zeroshot", GPQA, "acc_norm"),
        ("blimp", "blimp_adjunct_island", {"sentence_good": "a b", "sentence_bad": "b a"}, "acc"),
        ("hendrycks_math", "hendrycks_math_algebra", {"problem": "1", "solution": "\\boxed{1}"}, "exact_match"),
    ],
)
def test_each_task_has_one_score_an_item(tmp_path, folder, name, document, metric):
    questions = load(copied(tmp_path, folder, *[document] * 6), name, allow_task_code=True)
    assert questions.metrics[name].metric == metric
    scores, _ = scored(questions, "water")
    assert None not in scores


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("folder", "name"),
    [("squadv2", "squadv2"), ("minerva_math", "minerva_math_algebra"), ("longbench", "longbench_hotpotqa")],
)
def test_what_cannot_be_loaded_here_is_one_clear_error(tmp_path, folder, name):
    copied(tmp_path, folder, {"question": "q"})
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, name, allow_task_code=True)
    assert refused.value.hint

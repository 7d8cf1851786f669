from __future__ import annotations

import json

import pytest

pytest.importorskip("lm_eval")

from lm_eval.api.model import LM

from llm_pipeline.accuracy.evaluation import TaskGroup, read_summary, summarise, write_evaluation
from llm_pipeline.accuracy.questions import NotFinite, Questions
from llm_pipeline.artifacts.items import ScoredItem
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.config.release import Evaluation

CHOICE = {
    "task": "choose", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{prompt}}",
    "doc_to_choice": "{{choices}}", "doc_to_target": "{{right}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
SAY = {key: value for key, value in CHOICE.items() if key != "doc_to_choice"} | {
    "task": "say", "output_type": "generate_until", "doc_to_target": "{{choices[right]}}",
    "generation_kwargs": {"until": ["\n"], "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip


class Answering(LM):
    """Prefers the choice whose first letter comes first, and says `a`."""

    def __init__(self, value=None, lost=0):
        super().__init__()
        self.value, self.lost, self.asked = value, lost, []

    def loglikelihood(self, requests):
        self.asked += [one.args for one in requests]
        answers = [(-float(ord(one.args[1][1])) if self.value is None else self.value, False) for one in requests]
        return answers[self.lost :]

    def generate_until(self, requests):
        return ["a"] * len(requests)

    def loglikelihood_rolling(self, requests):
        raise NotImplementedError


@pytest.fixture
def tasks(tmp_path):
    rows = [{"prompt": f"q{n}?", "choices": ["b", "a"], "right": n % 2, "page": f"p{n // 3}"} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in (CHOICE, SAY):
        (tmp_path / f"{task['task']}.yaml").write_text(json.dumps(task))
    return tmp_path


def load(tasks, names=("choose", "say"), **changes):
    return Questions.load(tasks, Evaluation(tasks=names, served_tasks=names[:1], **changes), names)


def test_items_come_back_in_the_order_asked_and_scored_by_their_task(tasks):
    order = [("say", 5), ("choose", 3), ("choose", 0), ("say", 0)]
    items = load(tasks).ask(Answering(), order)
    assert [(item.task, item.item_id) for item in items] == order
    assert [item.score for item in items] == [1.0, 1.0, 0.0, 0.0]
    assert (items[0].prompt, items[0].completion, items[0].generative) == ("q5?", "a", True)
    assert (items[1].prompt, items[1].generative) == ("", False)


def test_an_item_is_the_same_in_any_portion_and_asked_twice(tasks):
    order = [(task, number) for number in range(9) for task in ("choose", "say")]
    whole, questions = load(tasks).ask(Answering(), order), load(tasks)
    parts = [item for start in range(0, 18, 5) for item in questions.ask(Answering(), order[start : start + 5])]
    assert parts == whole == questions.ask(Answering(), order)


def test_few_shot_examples_do_not_depend_on_what_is_asked(tasks):
    shots = {**CHOICE, "num_fewshot": 2, "fewshot_split": "test"}
    (tasks / "choose.yaml").write_text(json.dumps(shots))
    one, all_of_them = Answering(), Answering()
    load(tasks, ("choose",)).ask(one, [("choose", 7)])
    load(tasks, ("choose",)).ask(all_of_them, [("choose", number) for number in range(9)])
    assert one.asked == all_of_them.asked[14:16]
    assert one.asked[0][0].count("?") == 3


def test_clusters_come_from_a_field_of_the_documents(tasks):
    assert load(tasks, cluster_field="page").clusters["say"] == ["p0"] * 3 + ["p1"] * 3 + ["p2"] * 3
    assert set(load(tasks).clusters["say"]) == {""}
    assert load(tasks, cluster_field="page").ask(Answering(), [("say", 4)])[0].cluster == "p1"
    with pytest.raises(ConfigError, match="cluster field 'passage'"):
        load(tasks, cluster_field="passage")


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_a_likelihood_that_is_no_number_is_never_a_score(tasks, value):
    with pytest.raises(NotFinite, match=str(value)) as refused:
        load(tasks).ask(Answering(value), [("choose", 2)])
    assert refused.value.where == "item 2 of task choose"


def test_answers_that_are_missing_are_an_error(tasks):
    with pytest.raises(IntegrityError, match="3 answers to 4 requests"):
        load(tasks).ask(Answering(lost=1), [("choose", 2), ("choose", 3)])


def test_what_is_asked_has_an_identity_that_names_its_parts(tasks):
    before = load(tasks).identity
    assert load(tasks).identity == before
    rows = (tasks / "rows.jsonl").read_text()
    (tasks / "rows.jsonl").write_text(rows.replace("q4?", "q4!"))
    after = load(tasks).identity
    assert {name for name in before if before[name] != after[name]} == {"questions of choose", "questions of say"}
    (tasks / "rows.jsonl").write_text(rows)
    (tasks / "say.yaml").write_text(json.dumps({**SAY, "generation_kwargs": {"until": ["."], "do_sample": False}}))
    after = load(tasks).identity
    assert {name for name in before if before[name] != after[name]} == {"task say", "questions of say"}


def test_the_limit_of_the_evaluation_holds(tasks):
    assert {name: len(documents) for name, documents in load(tasks, limit=4).clusters.items()} == {
        "choose": 4,
        "say": 4,
    }


def test_an_items_text_is_its_prompt_with_what_was_said_or_is_right(tasks):
    questions = load(tasks)
    chosen, said = questions.ask(Answering(), [("choose", 0), ("say", 0)])
    assert questions.text(chosen) == "q0? b"
    assert questions.text(said) == "q0?a"


def test_the_first_of_several_filters_is_the_score(tasks):
    shouting = {"name": "loud", "filter": [{"function": "uppercase"}, {"function": "take_first"}]}
    plain = {"name": "plain", "filter": [{"function": "take_first"}]}
    for filters, score in (([plain, shouting], 1.0), ([shouting, plain], 0.0)):
        (tasks / "say.yaml").write_text(json.dumps({**SAY, "filter_list": filters}))
        assert [item.score for item in load(tasks, ("say",)).ask(Answering(), [("say", 1)])] == [score]


def test_scored_items_are_plain_data(tasks):
    (item,) = load(tasks).ask(Answering(), [("say", 1)])
    assert ScoredItem.model_validate_json(item.model_dump_json()) == item


def test_guessing_scores_a_share_of_the_choices_and_no_written_answer(tasks):
    rows = [{"prompt": "q?", "choices": list("abcde"[:count]), "right": 0, "page": "p"} for count in (2, 4, 5)]
    (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = load(tasks)
    asked = questions.ask(Answering(), [("choose", 0), ("choose", 1), ("choose", 2), ("say", 0)])
    assert [questions.chance(item) for item in asked] == [1 / 2, 1 / 4, 1 / 5, 0.0]


def test_a_guess_is_scored_by_the_tasks_own_metric(tasks):
    several = CHOICE | {"task": "several", "doc_to_target": "{{[0, 2]}}", "metric_list": CHOICE["metric_list"]}
    mutual = CHOICE | {"task": "mutual", "metric_list": [*CHOICE["metric_list"], {"metric": "acc_mutual_info"}]}
    rows = [{"prompt": "q?", "choices": ["a", "b", "c", "d"], "right": 1, "page": "p"}]
    (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in (several, mutual):
        (tasks / f"{task['task']}.yaml").write_text(json.dumps(task))
    questions = load(tasks, ("several", "mutual"))
    asked = questions.ask(Answering(value=-1.0), [("several", 0), ("mutual", 0)])
    assert [questions.chance(item) for item in asked] == [1 / 2, 1 / 4]


def test_an_evaluation_says_which_groups_it_was_asked_for(tmp_path):
    group = TaskGroup(name="whole", tasks=("part_a", "part_b"), weighting="tasks")
    summary = summarise([], {}, {}).model_copy(update={"groups": (group,), "tags": {"label": ("a",)}})
    write_evaluation(tmp_path, [], summary)
    assert read_summary(tmp_path).groups == (group,)
    assert read_summary(tmp_path).named_tasks == {"whole": ("part_a", "part_b"), "label": ("a",)}


def test_a_template_runs_nothing_that_python_could(tasks):
    reaching = {**SAY, "doc_to_text": "{{ prompt.__class__.__base__.__subclasses__() }}"}
    (tasks / "say.yaml").write_text(json.dumps(reaching))
    with pytest.raises(ConfigError, match="unsafe"):
        load(tasks, ("say",))


def test_a_field_that_only_some_documents_have_is_none_in_the_others(tasks):
    rows = [
        {"prompt": "q0?", "choices": ["a"], "right": 0},
        {"prompt": "q1?", "choices": ["a"], "right": 0, "hint": "h"},
    ]
    (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tasks / "say.yaml").write_text(json.dumps(SAY | {"doc_to_text": "{{prompt}}{{hint}}"}))
    items = load(tasks, ("say",)).ask(Answering(), [("say", 0), ("say", 1)])
    assert [item.prompt for item in items] == ["q0?None", "q1?h"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_to_text": "{{nothing}}"}, "nothing"),
        ({"doc_to_text": "{{"}, "TemplateSyntaxError"),
        pytest.param(
            {"metric_list": [{"metric": "no_such_metric"}]},
            "lm-eval cannot load",
            marks=pytest.mark.thorough,  # it is looked for among the metrics of another library
        ),
        ({"filter_list": [{"name": "a", "filter": [{"function": "no_such"}]}]}, "lm-eval cannot load"),
        ({"output_type": "sing"}, "sing"),
        ({"num_fewshot": "many"}, "cannot"),
    ],
)
def test_whatever_is_wrong_with_a_task_file_is_one_clear_error(tasks, changes, message):
    (tasks / "say.yaml").write_text(json.dumps(SAY | changes))
    with pytest.raises(ConfigError, match=message):
        load(tasks, ("say",))


def test_a_tasks_own_python_is_run_with_permission_and_only_from_its_directory(tasks):
    (tasks / "say.yaml").write_text(json.dumps(SAY).replace('"{{prompt}}"', "!function steps.ask"))
    (tasks / "steps.py").write_text("def ask(document):\n    return 'own ' + document['prompt']\n")
    assert load(tasks, ("say",), allow_task_code=True).instances()[0].args[0] == "own q0?"
    for code, message in (
        ("import absent_module_x", "module absent_module_x is missing"),
        ("x = 1", "no function 'ask'"),
    ):
        (tasks / "steps.py").write_text(code + "\n")
        with pytest.raises(ConfigError, match=message):
            load(tasks, ("say",), allow_task_code=True)
    inner = tasks / "inner"
    inner.mkdir()
    (tasks / "say.yaml").rename(inner / "say.yaml")
    (inner / "say.yaml").write_text((inner / "say.yaml").read_text().replace("steps.ask", "../steps.ask"))
    with pytest.raises(ConfigError):
        load(inner, ("say",), allow_task_code=True)

"""The checkpoint lane with a real model, tokenizer and harness."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file

from llm_pipeline.accuracy import item_runner as asking
from llm_pipeline.accuracy.baseline_gate import judge_baseline
from llm_pipeline.accuracy.checkpoint_lane import evaluate_baseline, evaluate_candidate
from llm_pipeline.accuracy.divergence import REFERENCE_FILE
from llm_pipeline.accuracy.evaluation import read_summary
from llm_pipeline.accuracy.questions import NotFinite, Questions
from llm_pipeline.accuracy.table import format_evaluation
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation, ExpectedScore

TASKS = Path(__file__).parents[2] / "configs" / "tasks" / "demo"
EVALUATION = Evaluation(
    tasks=("demo_generate", "demo_choice"), served_tasks=("demo_generate",), limit=150, batch_size=64,
    maximum_length=128,
)  # fmt: skip
POLICY = AccuracyPolicy(margin=0.05, task_margin=0.1, minimum_items=60)


@pytest.fixture(scope="module")
def baseline(source, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("baseline")
    return evaluate_baseline({"checkpoint": source, "tasks": TASKS}, EVALUATION, "float16", workdir)


def candidate(checkpoint, baseline, workdir, **changes):
    inputs = {"checkpoint": checkpoint, "tasks": TASKS, "baseline": baseline.directory}
    return evaluate_candidate(inputs, EVALUATION.model_copy(update=changes), POLICY, "float16", workdir)


def damaged(source, destination, *, scale):
    """The checkpoint with the weights of one layer multiplied."""
    shutil.copytree(source, destination)
    weights = load_file(destination / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    save_file({**weights, name: weights[name] * scale}, destination / "model.safetensors", metadata={"format": "pt"})
    return destination


def test_a_baseline_is_asked_everything_and_keeps_its_texts(baseline):
    summary = read_summary(baseline.directory)
    assert summary == baseline.summary
    assert (summary.asked, summary.planned, len(read_items(baseline.directory))) == (300, 300, 300)
    assert summary.scoring == "shared prefixes"
    assert summary.perplexity > 1.0
    assert (baseline.directory / REFERENCE_FILE).exists()
    assert summary.harness["begin token"] == "added"
    assert "demo_choice" in format_evaluation(summary)


def with_norms(source, destination, norms):
    """The checkpoint with every weight of some norms set to one value: no header tells of it."""
    shutil.copytree(source, destination)
    weights = load_file(destination / "model.safetensors")
    changed = {f"{name}.weight": torch.full_like(weights[f"{name}.weight"], value) for name, value in norms.items()}
    save_file({**weights, **changed}, destination / "model.safetensors", metadata={"format": "pt"})
    return destination


def test_every_item_of_a_baseline_knows_what_guessing_scores(baseline):
    chances = {item.task: set() for item in baseline.items}
    for item in baseline.items:
        chances[item.task].add(item.chance)
    assert chances["demo_generate"] == {0.0}
    assert chances["demo_choice"] > {1 / 2}
    assert max(chances["demo_choice"]) == 1 / 2


@pytest.mark.parametrize(
    ("norms", "stated"),
    [
        ({"model.norm": 0.0}, False),
        ({"model.layers.0.input_layernorm": 0.0}, True),
        ({"model.layers.0.input_layernorm": 1.0, "model.layers.0.post_attention_layernorm": 1.0}, True),
    ],
)
def test_a_damaged_source_is_an_anomalous_baseline(source, baseline, tmp_path, norms, stated):
    whole = baseline.summary.tasks["demo_generate"].accuracy
    published = ExpectedScore(minimum=whole - 0.02, maximum=whole + 0.02, source="the model as it was trained")
    expected = {"demo_generate": published} if stated else {}
    assert judge_baseline(baseline.items, expected, baseline.summary.named_tasks).verdict is Verdict.GO
    broken = with_norms(source, tmp_path / "weights", norms)
    damaged = evaluate_baseline({"checkpoint": broken, "tasks": TASKS}, EVALUATION, "float16", tmp_path)
    assert judge_baseline(damaged.items, expected, damaged.summary.named_tasks).verdict is Verdict.ANOMALOUS


def test_an_equal_candidate_passes_before_all_is_asked(source, baseline, tmp_path):
    evaluated, judgement = candidate(source, baseline, tmp_path)
    assert judgement.verdict is Verdict.GO
    assert len(read_items(evaluated.directory)) == evaluated.summary.asked < evaluated.summary.planned == 300
    assert evaluated.summary.divergence.kl_at_least == pytest.approx(0.0, abs=1e-4)
    assert evaluated.metrics()["look"] == evaluated.summary.look
    first = {(item.task, item.item_id): item for item in baseline.items}
    assert [item.fingerprint for item in evaluated.items] == [
        first[item.task, item.item_id].fingerprint for item in evaluated.items
    ]


def test_a_damaged_candidate_fails_early_and_far_away(source, baseline, tmp_path):
    evaluated, judgement = candidate(damaged(source, tmp_path / "weights", scale=-3.0), baseline, tmp_path)
    assert judgement.verdict is Verdict.NO_GO
    assert evaluated.summary.asked < 300
    assert evaluated.summary.divergence.kl_at_least > 0.1


def test_numbers_that_are_not_finite_never_pass(source, baseline, tmp_path):
    broken = damaged(source, tmp_path / "weights", scale=float("nan"))
    evaluated, judgement = candidate(broken, baseline, tmp_path)
    assert judgement.verdict is Verdict.NO_GO
    assert "log-likelihood is nan" in judgement.summary
    assert evaluated.summary.divergence.kl_at_least is None
    with pytest.raises(NotFinite):
        evaluate_baseline({"checkpoint": broken, "tasks": TASKS}, EVALUATION, "float16", tmp_path / "again")


def test_a_killed_evaluation_goes_on_and_ends_the_same(source, baseline, tmp_path, monkeypatch):
    whole, _ = candidate(source, baseline, tmp_path / "whole")
    monkeypatch.setattr(asking, "PORTION_ITEMS", 25)
    ask, portions = Questions.ask, []

    def until_killed(self, model, order):
        if len(portions) == 2:
            raise KeyboardInterrupt
        portions.append(order)
        return ask(self, model, order)

    monkeypatch.setattr(Questions, "ask", until_killed)
    with pytest.raises(KeyboardInterrupt):
        candidate(source, baseline, tmp_path)
    monkeypatch.setattr(Questions, "ask", lambda self, model, order: portions.append(order) or ask(self, model, order))
    resumed, _ = candidate(source, baseline, tmp_path)
    asked = [place for portion in portions for place in portion]
    assert len(set(asked)) == len(asked) == resumed.summary.asked
    assert [item.score for item in resumed.items] == [item.score for item in whole.items]


@pytest.mark.parametrize(("task", "room"), [("demo_choice", 129), ("demo_generate", 128 - 12)])
def test_what_would_be_cut_is_refused_before_anything_is_asked(source, tmp_path, task, room):
    tasks = shutil.copytree(TASKS, tmp_path / "tasks")
    rows = (tasks / f"{task}.jsonl").read_text().splitlines()
    long = json.loads(rows[100])
    long["prompt"] = "one two three four " * 60 + long["prompt"]
    (tasks / f"{task}.jsonl").write_text("\n".join([*rows[:100], json.dumps(long), *rows[101:]]))
    with pytest.raises(ConfigError, match=rf"tokens, of which {room} fit") as refused:
        evaluate_baseline({"checkpoint": source, "tasks": tasks}, EVALUATION, "float16", tmp_path)
    assert refused.value.where == f"item 100 of task {task}"
    assert "the model takes 128 tokens" in refused.value.hint
    assert not (tmp_path / "items").exists()


def test_another_tokenizer_or_length_is_not_comparable(source, baseline, tmp_path):
    with pytest.raises(IntegrityError, match="maximum length: 128 before, 64 now"):
        candidate(source, baseline, tmp_path, maximum_length=64)
    other = shutil.copytree(source, tmp_path / "weights")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(IntegrityError, match=r"tokenizer: .*begin token: added before, not added now"):
        candidate(other, baseline, tmp_path)


@pytest.mark.thorough
def test_a_group_is_judged_as_one_task_of_the_real_harness(source, tmp_path):
    """Two tasks of 40 items each: neither proves its margin, and lm-eval's group of both does."""
    tasks = tmp_path / "tasks"
    shutil.copytree(TASKS, tasks)
    alone = (tasks / "demo_choice.yaml").read_text(encoding="utf-8")
    for name in ("part_a", "part_b"):
        (tasks / f"{name}.yaml").write_text(alone.replace("task: demo_choice", f"task: {name}"), encoding="utf-8")
    mean = {"metric": "acc", "weight_by_size": False}
    group = {"group": "whole", "task": ["part_a", "part_b"], "aggregate_metric_list": [mean]}
    (tasks / "whole.yaml").write_text(json.dumps(group), encoding="utf-8")
    policy = AccuracyPolicy(margin=0.06, task_margin=0.06, minimum_items=60, method="fixed")
    verdicts = {}
    for names in (("whole",), ("part_a", "part_b")):
        evaluation = EVALUATION.model_copy(update={"tasks": names, "served_tasks": (), "limit": 40})
        before = evaluate_baseline({"checkpoint": source, "tasks": tasks}, evaluation, "float16", tmp_path / names[0])
        inputs = {"checkpoint": source, "tasks": tasks, "baseline": before.directory}
        _, judgement = evaluate_candidate(inputs, evaluation, policy, "float16", tmp_path / f"{names[0]}-again")
        verdicts[names[0]] = judgement
    assert verdicts["part_a"].verdict is Verdict.INCONCLUSIVE
    assert verdicts["whole"].verdict is Verdict.GO
    assert verdicts["whole"].evidence[1].name == "accuracy loss, whole"

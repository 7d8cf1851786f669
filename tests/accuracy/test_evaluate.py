"""The evaluations of baseline and candidate with a real model, tokenizer and lm-eval."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file
from small_tasks import CHOICE, SAY, write_chat_model, write_tasks

from llm_pipeline.accuracy.baseline_gate import judge_baseline
from llm_pipeline.accuracy.evaluate import evaluate_baseline, evaluate_candidate
from llm_pipeline.accuracy.evaluation import format_evaluation, read_summary
from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.progress import Progress
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation, ExpectedScore

TASKS = Path(__file__).parents[2] / "configs" / "tasks" / "demo"
EVALUATION = Evaluation(
    tasks=("demo_generate", "demo_choice"), served_tasks=("demo_generate",), limit=150, batch_size=64,
    maximum_length=128,
)  # fmt: skip
POLICY = AccuracyPolicy(margin=0.05, task_margin=0.2, minimum_items=60)
KILLED = """
import os, signal, sys
from pathlib import Path
from llm_pipeline.accuracy.evaluate import evaluate_baseline
from llm_pipeline.base.progress import Progress
from llm_pipeline.config.release import Evaluation

counted, advance = [], Progress.advance
def killed_in_the_middle(self, steps=1):
    counted.append(steps)
    if len(counted) == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    advance(self, steps)
Progress.advance = killed_in_the_middle
source, tasks, workdir, evaluation = sys.argv[1:]
inputs = {"checkpoint": Path(source), "tasks": Path(tasks)}
evaluate_baseline(inputs, Evaluation.model_validate_json(evaluation), "float16", Path(workdir))
"""


@pytest.fixture(scope="module")
def baseline(source, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("baseline")
    return evaluate_baseline({"checkpoint": source, "tasks": TASKS}, EVALUATION, "float16", workdir)


def candidate(checkpoint, baseline, workdir, **changes):
    inputs = {"checkpoint": checkpoint, "tasks": TASKS, "baseline": baseline.directory}
    return evaluate_candidate(inputs, EVALUATION.model_copy(update=changes), POLICY, "float16", workdir)


def with_weights(source, destination, change):
    """The checkpoint with some weights changed: `change` is given all of them by name."""
    shutil.copytree(source, destination)
    weights = load_file(destination / "model.safetensors")
    save_file({**weights, **change(weights)}, destination / "model.safetensors", metadata={"format": "pt"})
    return destination


def damaged(source, destination, *, scale):
    """The checkpoint with the weights of one layer multiplied."""
    name = "model.layers.0.mlp.down_proj.weight"
    return with_weights(source, destination, lambda weights: {name: weights[name] * scale})


def test_a_baseline_is_asked_everything(baseline):
    summary = read_summary(baseline.directory)
    assert summary == baseline.summary
    assert (summary.asked, summary.planned, len(read_items(baseline.directory))) == (300, 300, 300)
    assert {name: summary.harness[name] for name in ("scorer", "maximum length")} == {
        "scorer": "hf", "maximum length": "128",
    }  # fmt: skip
    head, _, *rows = format_evaluation(summary).strip().splitlines()
    cut = {row.split()[0]: int(row.split()[head.split().index("cut")]) for row in rows}
    assert cut == {name: sum(item.cut for item in baseline.items if item.task == name) for name in EVALUATION.tasks}


def test_a_damaged_source_is_an_anomalous_baseline(source, baseline, tmp_path):
    whole = baseline.summary.tasks["demo_generate"].accuracy
    published = ExpectedScore(minimum=whole - 0.02, maximum=whole + 0.02, source="the model as it was trained")
    norms = [f"model.layers.0.{name}_layernorm.weight" for name in ("input", "post_attention")]
    broken = with_weights(
        source, tmp_path / "weights", lambda own: {name: torch.ones_like(own[name]) for name in norms}
    )
    damaged = evaluate_baseline({"checkpoint": broken, "tasks": TASKS}, EVALUATION, "float16", tmp_path)
    verdicts = [judge_baseline(one.items, {"demo_generate": published}, {}).verdict for one in (baseline, damaged)]
    assert verdicts == [Verdict.GO, Verdict.ANOMALOUS]


def test_an_equal_candidate_passes_before_all_is_asked(source, baseline, tmp_path):
    evaluated, judgement = candidate(source, baseline, tmp_path, tasks=("demo_generate",))
    assert judgement.verdict is Verdict.GO
    assert len(read_items(evaluated.directory)) == evaluated.summary.asked < evaluated.summary.planned == 150
    assert evaluated.metrics()["look"] == evaluated.summary.look
    first = {(item.task, item.item_id): item for item in baseline.items}
    asked = [first[item.task, item.item_id].model_copy(update={"chance": item.chance}) for item in evaluated.items]
    assert list(evaluated.items) == asked


def test_a_damaged_candidate_fails_early(source, baseline, tmp_path):
    evaluated, judgement = candidate(damaged(source, tmp_path / "weights", scale=-3.0), baseline, tmp_path)
    assert judgement.verdict is Verdict.NO_GO
    assert evaluated.summary.asked < 300


def test_numbers_that_are_not_finite_never_pass(source, baseline, tmp_path):
    broken = damaged(source, tmp_path / "weights", scale=float("nan"))
    _, judgement = candidate(broken, baseline, tmp_path)
    assert judgement.verdict is Verdict.NO_GO
    assert "log-likelihood is nan" in judgement.summary


def test_an_evaluation_that_is_killed_goes_on_and_ends_the_same(source, tmp_path, monkeypatch):
    evaluation = EVALUATION.model_copy(update={"limit": 60})
    command = [sys.executable, "-c", KILLED, source, TASKS, tmp_path, evaluation.model_dump_json()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.run(list(map(str, command)), check=False, env=environment, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    kept = tmp_path / "answers.jsonl"
    lines = kept.read_bytes().splitlines()
    kept.write_bytes(b"\n".join(lines)[:-5])  # the last line is torn
    counted, advance = [], Progress.advance
    monkeypatch.setattr(Progress, "advance", lambda self, steps=1: counted.append(steps) or advance(self, steps))
    resumed = evaluate_baseline({"checkpoint": source, "tasks": TASKS}, evaluation, "float16", tmp_path)
    again = len(counted)
    counted.clear()
    whole = evaluate_baseline({"checkpoint": source, "tasks": TASKS}, evaluation, "float16", tmp_path / "whole")
    assert resumed.items == whole.items
    assert again == len(counted) - (len(list(filter(None, lines))) - 1)


def test_another_tokenizer_length_or_generation_is_not_comparable(source, baseline, tmp_path):
    with pytest.raises(IntegrityError, match="maximum length: 128 before, 64 now"):
        candidate(source, baseline, tmp_path, maximum_length=64)
    with pytest.raises(IntegrityError, match="generation: "):
        candidate(source, baseline, tmp_path, max_gen_toks=5)
    other = shutil.copytree(source, tmp_path / "weights")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["post_processor"] = None
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(IntegrityError, match="tokenizer: "):
        candidate(other, baseline, tmp_path)


def test_generation_settings_and_end_tokens_of_the_model_shape_both_sides_alike(tmp_path):
    """generation_config.json asks for a penalty and short answers, which are no baseline's; its end tokens are."""
    source = write_chat_model(tmp_path / "source")
    tasks = write_tasks(tmp_path / "tasks", SAY, CHOICE, rows=60)
    evaluation = Evaluation(tasks=("say", "pick"), served_tasks=("say",), batch_size=8, maximum_length=256)
    plain = evaluate_baseline({"checkpoint": source, "tasks": tasks}, evaluation, "float16", tmp_path / "plain")
    told = {"eos_token_id": [1], "repetition_penalty": 2.35, "max_new_tokens": 1, "do_sample": True, "temperature": 0.9}
    (source / "generation_config.json").write_text(json.dumps(told))
    shaped = evaluate_baseline({"checkpoint": source, "tasks": tasks}, evaluation, "float16", tmp_path / "shaped")
    assert shaped.items == plain.items
    first = next(item for item in plain.items if item.completion)
    token = load_tokenizer(source)(first.completion, add_special_tokens=False)["input_ids"][0]
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, token]}))
    ended = evaluate_baseline({"checkpoint": source, "tasks": tasks}, evaluation, "float16", tmp_path / "ended")
    again = next(item for item in ended.items if (item.task, item.item_id) == (first.task, first.item_id))
    assert (again.completion, again.cut) == ("", False)

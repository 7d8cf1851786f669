"""lm-eval on a served model: a real Triton server whose model repeats the prompt's words, and OpenAI's API."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from openai_server import OpenAiDouble
from small_tasks import CHOICE, SAY, write_chat_model, write_tasks

from llm_pipeline.accuracy import served_model
from llm_pipeline.accuracy.evaluate import evaluate_baseline, evaluate_served
from llm_pipeline.base.errors import IntegrityError, Transient, Unsupported
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TRITON_HOME, PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"
REPEAT = SAY | {
    "task": "repeat", "doc_to_target": "{{q}}", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 3},
    "filter_list": [{"name": "s", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
}  # fmt: skip
POLICY = AccuracyPolicy(minimum_items=30)


@pytest.fixture(scope="module")
def endpoint():
    with OpenAiDouble() as server:
        yield Endpoint(url=server.url, openai_model="llm")


def evaluation(name="repeat", **changes):
    return Evaluation(tasks=(name,), served_tasks=(name,), batch_size=8, maximum_length=256, **changes)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Tasks, and a baseline that was asked them in its chat format."""
    root = tmp_path_factory.mktemp("inputs")
    tasks = write_tasks(root / "tasks", REPEAT, CHOICE, rows=40)
    inputs = {"checkpoint": write_chat_model(root / "model"), "tasks": tasks}
    both = Evaluation(tasks=("repeat", "pick"), served_tasks=("repeat",), batch_size=8, maximum_length=256)
    baseline = evaluate_baseline(inputs, both, "float32", root)
    return inputs | {"baseline": baseline.directory}, baseline


def served(endpoint, inputs, workdir, **changes):
    return evaluate_served(inputs[0], evaluation(**changes), POLICY, endpoint, workdir)


def test_a_server_is_asked_the_prompts_of_the_baseline_and_its_answers_are_scored(endpoint, inputs, tmp_path):
    evaluated, judgement = served(endpoint, inputs, tmp_path)
    before = {item.item_id: item for item in inputs[1].items if item.task == "repeat"}
    assert len(evaluated.items) > 0
    for item in evaluated.items:
        assert (item.prompt, item.fingerprint) == (before[item.item_id].prompt, before[item.item_id].fingerprint)
        assert item.prompt == f"[user]Is water {item.item_id} wet?[/][assistant]"
        assert item.score == 0.0
        assert item.completion
    assert judgement.summary
    assert evaluated.summary.harness.items() <= inputs[1].summary.harness.items()


def test_a_server_with_openais_api_is_asked_the_same(inputs, tmp_path):
    with OpenAiDouble() as server:
        evaluated, _ = served(Endpoint(url=server.url, openai_model="llm"), inputs, tmp_path)
        seen = {one["prompt"]: one for one in server.seen}
    assert {item.prompt for item in evaluated.items} == set(seen)
    wanted = {"model": "llm", "max_tokens": 3, "temperature": 0.0, "stream": False}
    assert all(wanted.items() <= one.items() and "\n" in one["stop"] for one in seen.values())


@pytest.mark.parametrize("fault", ["no_usage", "other_model", "filtered"])
def test_an_answer_of_openais_api_that_is_wrong_is_no_score(inputs, tmp_path, fault, monkeypatch):
    monkeypatch.setattr(served_model, "_ATTEMPTS", 1)
    with OpenAiDouble(fault=fault) as server, pytest.raises(Transient, match="no usable answer"):
        served(Endpoint(url=server.url, openai_model="llm"), inputs, tmp_path)


def test_another_chat_format_or_generation_than_the_baselines_is_refused(endpoint, inputs, tmp_path):
    with pytest.raises(IntegrityError, match="chat template of repeat"):
        served(endpoint, inputs, tmp_path, chat_template_arguments={"mood": "calm"})
    with pytest.raises(IntegrityError, match="generation: "):
        served(endpoint, inputs, tmp_path, max_gen_toks=2)


def test_a_task_of_likelihoods_is_refused_before_anything_is_asked(endpoint, inputs, tmp_path):
    with pytest.raises(Unsupported, match="log-likelihoods") as refused:
        served(endpoint, inputs, tmp_path, name="pick")
    assert refused.value.where == "task pick"


def test_a_server_that_does_not_answer_is_worth_another_try(inputs, tmp_path):
    with pytest.raises(Transient, match="3 attempts"):
        served(Endpoint(url="http://127.0.0.1:9"), inputs, tmp_path)

"""lm-eval on a served model: what is sent and what becomes of answers; `packaged/test_lm_eval.py` has an engine."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("lm_eval")

from openai_server import KEY, OpenAiDouble
from small_tasks import CHOICE, SAY, write_chat_model, write_tasks

from llm_pipeline.accuracy.evaluate import evaluate_baseline, evaluate_served
from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient, Unsupported
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation

pytestmark = pytest.mark.slow

REPEAT = SAY | {
    "task": "repeat", "doc_to_target": "{{q}}", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 3},
    "filter_list": [{"name": "s", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
}  # fmt: skip
POLICY = AccuracyPolicy(minimum_items=30)


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


def served(server, inputs, workdir, name="repeat", *, key=None, **changes):
    endpoint = Endpoint(url=server.url, openai_model="llm", api_key_variable=key)
    return evaluate_served(inputs[0], evaluation(name, **changes), POLICY, endpoint, workdir)


def test_a_server_is_asked_the_prompts_of_the_baseline_and_its_answers_are_scored(inputs, tmp_path):
    with OpenAiDouble() as server:
        evaluated, judgement = served(server, inputs, tmp_path)
        seen = {one["prompt"]: one for one in server.seen}
        assert served(server, inputs, tmp_path)[0].items == evaluated.items
        assert len(server.seen) == len(evaluated.items), "an answer that is known is not asked for again"
    before = {item.item_id: item for item in inputs[1].items if item.task == "repeat"}
    assert {item.prompt for item in evaluated.items} == set(seen)
    for item in evaluated.items:
        assert (item.prompt, item.fingerprint) == (before[item.item_id].prompt, before[item.item_id].fingerprint)
        assert item.prompt == f"[user]Is water {item.item_id} wet?[/][assistant]"
        assert (len(item.completion.split()), item.cut) == (3, True)
    wanted = {"model": "llm", "max_tokens": 3, "temperature": 0.0, "repetition_penalty": 1.0}
    assert all(wanted.items() <= one.items() and "\n" in one["stop"] for one in seen.values())
    assert judgement.summary
    assert evaluated.summary.harness.items() <= inputs[1].summary.harness.items()


@pytest.mark.parametrize("fault", ["other_model", "filtered", "cut", "overloaded"])
def test_an_answer_that_is_wrong_is_no_score(inputs, tmp_path, fault):
    with OpenAiDouble(fault=fault) as server, pytest.raises(Transient, match="no usable answer in 3 attempts"):
        served(server, inputs, tmp_path)


def test_another_chat_format_or_generation_than_the_baselines_is_refused(inputs, tmp_path):
    with OpenAiDouble() as server:
        with pytest.raises(IntegrityError, match="chat template of repeat"):
            served(server, inputs, tmp_path, chat_template_arguments={"mood": "calm"})
        with pytest.raises(IntegrityError, match="generation: "):
            served(server, inputs, tmp_path, max_gen_toks=2)
        assert not server.seen


def test_a_server_that_echoes_no_prompt_has_no_likelihoods(inputs, tmp_path):
    with OpenAiDouble() as server, pytest.raises(Unsupported, match="0 logprobs") as refused:
        served(server, inputs, tmp_path, "pick")
    assert "served_tasks" in refused.value.hint


def test_what_a_server_refuses_is_told_without_its_key(inputs, tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.setenv("TEST_KEY", f"{KEY}-that-is-wrong")
    with (
        caplog.at_level(logging.DEBUG),
        OpenAiDouble(key=KEY) as server,
        pytest.raises(ConfigError, match="401: Incorrect API key") as refused,
    ):
        served(server, inputs, tmp_path, key="TEST_KEY")
    told = f"{refused.value!r} {refused.value.__cause__} {caplog.text} {capfd.readouterr()}"
    assert KEY not in told

"""The scorer with real models of one layer: what it asks, counts and refuses, beside lm-eval by itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

TESTS = Path(__file__).parents[1]

import lm_eval
import tiny_models
from lm_eval.__main__ import cli_evaluate
from safetensors.torch import load_file, save_file
from small_tasks import CHOICE, SAY, SHOTS, write_chat_model, write_tasks

from llm_pipeline.accuracy import scorer as module
from llm_pipeline.accuracy.evaluate import evaluate_baseline
from llm_pipeline.accuracy.scorer import Scorer, checkpoint_model
from llm_pipeline.accuracy.tasks import load_tasks
from llm_pipeline.artifacts.checkpoint_loading import load_tokenizer
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import Evaluation, TaskOptions


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_chat_model(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    return tiny_models.make("qwen3-thinking", tmp_path_factory.mktemp("thinking") / "model")


@pytest.fixture
def tasks(tmp_path):
    return write_tasks(tmp_path / "tasks", CHOICE, SAY, SHOTS)


def evaluation(*names, **changes):
    return Evaluation(tasks=names, served_tasks=names[:1], **{"batch_size": 4, "maximum_length": 256, **changes})


def scorer(checkpoint, tasks, *names, dtype="float32", **changes):
    asked = evaluation(*names, **changes)
    tokenizer = load_tokenizer(checkpoint)
    model = checkpoint_model("hf", checkpoint, tokenizer, asked, dtype)
    return Scorer(model, tokenizer, load_tasks(tasks, None, asked, names), asked, Path(os.devnull))


def asked(checkpoint, tasks, *names, **changes):
    one = scorer(checkpoint, tasks, *names, **changes)
    one.try_tasks()
    return one.ask([(task, number) for task, own in one.clusters.items() for number in range(len(own))])


def test_items_equal_those_of_lm_evals_command_line(tasks, tmp_path, monkeypatch):
    """Prompts, likelihoods, texts and scores of three tasks; one token more or less would change each of them."""
    checkpoint = write_chat_model(tmp_path / "checkpoint", positions=128)
    names = ("pick", "say", "shots")
    command = [
        *("lm_eval", "run", "--tasks", *names, "--include_path", "."),
        *("--model", "hf", "--model_args", f"pretrained={checkpoint},dtype=float32,max_length=128", "--device", "cpu"),
        *("--batch_size", "4", "--apply_chat_template", "--fewshot_as_multiturn", "--log_samples"),
        *("--output_path", str(tmp_path / "out")),
    ]
    monkeypatch.chdir(tasks)
    monkeypatch.setattr(sys, "argv", command)
    cli_evaluate()
    one = scorer(checkpoint, tasks, *names, chat_template=True, maximum_length=128)
    one.try_tasks()
    places = [(task, number) for task, own in one.clusters.items() for number in range(len(own))]
    items = {(item.task, item.item_id): item for item in one.ask(places)}
    ours = {(task, sample["doc_id"]): sample for task, own in one._answered(places, 0).items() for sample in own}
    theirs = {
        (name, sample["doc_id"]): sample
        for name in names
        for file in (tmp_path / "out").rglob(f"samples_{name}_*.jsonl")
        for sample in map(json.loads, file.read_text().splitlines())
    }
    assert len(theirs) == len(ours) == len(items) == 60
    for place, sample in theirs.items():
        own, item, writes = ours[place], items[place], place[0] == "say"
        asked = [[one["arg_0"], one["arg_1"]] for one in sample["arguments"].values()]
        assert [[one[0], asked[0][1] if writes else one[1]] for one in own["arguments"]] == asked
        hashes = [sample[f"{part}_hash"] for part in ("doc", "prompt", "target")]
        assert (item.score, item.fingerprint) == (sample[sample["metrics"][-1]], module.sha256_json(hashes))
        if writes:
            assert [f"<s>{item.prompt}", item.completion] == [asked[0][0], sample["resps"][0][0]]
        else:
            for (mine,), (other,) in zip(own["resps"], sample["resps"], strict=True):
                assert mine[0] == pytest.approx(float(other[0]), abs=1e-4)
                assert str(mine[1]) == str(other[1])
    assert len({item.completion for item in items.values()}) > 5


def test_texts_are_asked_in_the_chat_format_and_choices_are_not(checkpoint, tasks):
    one = scorer(checkpoint, tasks, "say", "shots")
    one.try_tasks()
    assert {name: own.chat_template for name, own in one.metrics.items()} == {"say": True, "shots": False}
    assert one.ask([("say", 0)])[0].prompt == "[user]Is water 0 wet?[/][assistant]"
    (plain,) = scorer(checkpoint, tasks, "say", chat_template=False)._answered([("say", 0)], 0)["say"]
    assert plain["arguments"][0][0] == "Is water 0 wet?"
    (turns,) = scorer(checkpoint, tasks, "shots", chat_template=True)._answered([("shots", 0)], 0)["shots"]
    assert turns["arguments"][0][0].count("[user]") == 3
    bare = write_chat_model(tasks / "bare", template=None)
    with pytest.raises(ConfigError, match="no default chat template"):
        scorer(bare, tasks, "say", chat_template=True)


def test_a_template_that_names_the_day_writes_the_same_prompt_on_any_day(tasks):
    model = write_chat_model(tasks / "dated", "{{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ mood }}")
    one = scorer(model, tasks, "say", chat_template_arguments={"mood": "calm"})
    one.try_tasks()
    assert one.ask([("say", 0)])[0].prompt == "2024-07-26 26 Jul 2024 calm"


def test_one_token_across_context_and_choice_is_an_error_with_advice(checkpoint, tasks):
    joined = CHOICE | {
        "task": "joined", "doc_to_text": "{{q}} se", "doc_to_choice": ["es", "no"], "target_delimiter": "",
        "doc_to_target": 0,
    }  # fmt: skip
    write_tasks(tasks, joined)
    with pytest.raises(ConfigError, match="no token of its own") as refused:
        asked(checkpoint, tasks, "joined")
    assert refused.value.where == "item 0 of task joined"
    assert "target_delimiter" in refused.value.hint


@pytest.mark.parametrize("name", ["pick", "say"])
def test_a_prompt_that_would_be_cut_is_refused_before_the_rest_is_asked(checkpoint, tasks, name):
    rows = (tasks / "rows.jsonl").read_text().splitlines()
    long = json.dumps({"q": "water " * 300, "a": "yes"})
    (tasks / "rows.jsonl").write_text("\n".join([*rows[:7], long, *rows[8:]]))
    one = scorer(checkpoint, tasks, name)
    with pytest.raises(ConfigError, match=r"needs \d+ with its answer, and 256 fit") as refused:
        one.try_tasks()
    assert refused.value.where == f"item 7 of task {name}"
    assert "evaluation.maximum_length" in refused.value.hint


def test_thoughts_are_stripped_and_answers_that_ended_by_length_are_counted(thinking, tasks):
    say = SAY | {
        "task": "moon", "doc_to_target": "moon", "generation_kwargs": {"until": ["\n", " the"]},
        "filter_list": [{"name": "s", "filter": [{"function": "remove_whitespace"}, {"function": "take_first"}]}],
    }  # fmt: skip
    write_tasks(tasks, say, rows=4)
    short = asked(thinking, tasks, "moon", think_end="</think>", dtype="bfloat16", maximum_length=1024)
    assert {(item.score, item.cut, item.maximum_tokens) for item in short} == {(0.0, True, 256)}
    long = asked(thinking, tasks, "moon", think_end="</think>", dtype="bfloat16", maximum_length=1024, max_gen_toks=400)
    assert {(item.score, item.cut, item.maximum_tokens) for item in long} == {(1.0, False, 400)}
    assert all(item.completion.endswith("</think> moon") and item.stop == () for item in long)
    closed = asked(
        thinking,
        tasks,
        "moon",
        dtype="bfloat16",
        maximum_length=1024,
        chat_template_arguments={"enable_thinking": False},
    )
    assert {(item.score, item.cut, item.completion) for item in closed} == {(1.0, False, " moon")}


def test_sampled_answers_are_drawn_repeatedly_and_golden_ones_are_greedy(checkpoint, tasks):
    drawn = {"do_sample": True, "temperature": 1.5}
    one, again = (scorer(checkpoint, tasks, "say", "pick", generation=drawn, repeats=3) for _ in range(2))
    one.try_tasks()
    again.try_tasks()
    places = [("pick", 3), *(("say", number) for number in range(6))]
    items = one.ask(places)
    assert items == again.ask(places)
    greedy = scorer(checkpoint, tasks, "say")
    greedy.try_tasks()
    plain = {item.item_id: item.completion for item in greedy.ask(places[1:])}
    kept = {item.item_id: item.completion for item in one.with_greedy_answers(items, 4) if item.generative}
    assert {number: text for number, text in kept.items() if text} == {n: plain[n] for n in range(4) if plain[n]}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_that_overflows_in_float16_is_not_told_as_damage(checkpoint, tasks, tmp_path, dtype):
    wide = tmp_path / "wide"
    write_chat_model(wide)
    weights = {name: own.to(torch.bfloat16) for name, own in load_file(wide / "model.safetensors").items()}
    weights["model.embed_tokens.weight"] *= 1e7
    save_file(weights, wide / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((wide / "config.json").read_text())
    (wide / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    inputs = {"checkpoint": wide, "tasks": tasks}
    if dtype == "bfloat16":
        assert evaluate_baseline(inputs, evaluation("say", "pick"), dtype, tmp_path).summary.asked == 40
        return
    for names in (("say", "pick"), ("say",)):
        with pytest.raises(ConfigError, match="overflows in float16") as refused:
            evaluate_baseline(inputs, evaluation(*names), dtype, tmp_path / names[-1])
        assert refused.value.hint == "set baseline.dtype: bfloat16"


def test_a_task_without_a_share_an_item_is_refused_with_advice(checkpoint, tasks):
    corpus = CHOICE | {"task": "corpus", "metric_list": [{"metric": "mcc"}]}
    write_tasks(tasks, corpus)
    with pytest.raises(ConfigError, match="task corpus: mcc is no share") as refused:
        scorer(checkpoint, tasks, "corpus", "pick").try_tasks()
    assert "task file of your own" in refused.value.hint
    one = scorer(checkpoint, tasks, "pick", task_options={"pick": TaskOptions(metric="acc")})
    one.try_tasks()
    assert one.metrics["pick"].metric == "acc"


def test_every_item_knows_what_guessing_scores(checkpoint, tasks):
    several = CHOICE | {"task": "several", "doc_to_choice": ["yes", "no", "maybe", "so"], "doc_to_target": "{{[0, 2]}}"}
    write_tasks(tasks, several | {"metric_list": [{"metric": "acc"}]})
    items = asked(checkpoint, tasks, "pick", "say", "several")
    assert {(item.task, item.chance) for item in items} == {("pick", 0.5), ("say", 0.0), ("several", 0.5)}


def test_gsm8k_as_lm_eval_ships_it_is_read_by_its_last_number_and_shown_its_examples(tmp_path):
    model = write_chat_model(tmp_path / "model", positions=8192)
    tasks = shutil.copytree(Path(lm_eval.__file__).parent / "tasks" / "gsm8k", tmp_path / "tasks")
    row = json.dumps({"question": "What is 9 times 2?", "answer": "9 * 2 is 18.\n#### 18"})
    (tasks / "rows.jsonl").write_text(f"{row}\n" * 8)
    data = "dataset_path: json\ndataset_kwargs: {data_files: {train: rows.jsonl, test: rows.jsonl}}"
    for path in tasks.rglob("*yaml"):
        text = re.sub(r"^dataset_name:.*$", "", path.read_text(), flags=re.MULTILINE)
        path.write_text(re.sub(r"^dataset_path:.*$", lambda _: data, text, flags=re.MULTILINE))
    one = scorer(model, tasks, "gsm8k", maximum_length=8192)
    one.try_tasks()
    metric = one.metrics["gsm8k"]
    assert (metric.metric, metric.filter, metric.few_shots) == ("exact_match", "flexible-extract", 5)
    options = {"gsm8k": TaskOptions(filter="strict-match", num_fewshot=2)}
    strict = scorer(model, tasks, "gsm8k", maximum_length=8192, task_options=options)
    strict.try_tasks()
    assert (strict.metrics["gsm8k"].filter, strict.metrics["gsm8k"].few_shots) == ("strict-match", 2)
    assert strict.ask([("gsm8k", 1)])[0].prompt.count("Question:") == 3

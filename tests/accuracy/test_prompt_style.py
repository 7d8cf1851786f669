"""How a real checkpoint with a chat format is asked: an untrained model, with a tokenizer of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from llm_pipeline.accuracy.chat_template import ChatTemplate
from llm_pipeline.accuracy.checkpoint_lane import evaluate_baseline, evaluate_candidate
from llm_pipeline.accuracy.evaluation import read_summary, refuse_other_harness
from llm_pipeline.accuracy.lm_eval_served import served_questions
from llm_pipeline.accuracy.questions import Questions
from llm_pipeline.accuracy.table import format_evaluation
from llm_pipeline.accuracy.tasks import load_tasks
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation, TaskOptions

sys.path.insert(0, str(Path(__file__).parent))

from whole_evaluation import evaluate_checkpoint

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SAY = {
    "task": "say", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
PICK = {key: SAY[key] for key in SAY if key not in ("generation_kwargs", "metric_list")} | {
    "task": "pick", "output_type": "multiple_choice", "doc_to_choice": ["yes", "no"],
}  # fmt: skip
READ = {key: SAY[key] for key in SAY if key not in ("generation_kwargs", "metric_list")} | {
    "task": "read", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{q}}",
}  # fmt: skip
SAMPLE = SAY | {
    "task": "sample", "repeats": 3,
    "generation_kwargs": {"until": ["\n"], "do_sample": True, "temperature": 1.0, "max_gen_toks": 4},
    "filter_list": [{"name": "vote", "filter": [{"function": "majority_vote"}, {"function": "take_first"}]}],
}  # fmt: skip


def write_checkpoint(directory, template):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["is water wet? yes no"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.chat_template = template
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).half().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tasks")
    rows = [{"q": f"Is water {n} wet?", "a": "yes"} for n in range(4)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for task in (SAY, PICK, READ, SAMPLE):
        (directory / f"{task['task']}.yaml").write_text(json.dumps(task))
    return directory


def evaluation(*names, **changes):
    defaults = {"batch_size": 4, "maximum_length": 256}
    return Evaluation(tasks=names, served_tasks=names[:1], **defaults | changes)


def test_a_chat_model_is_asked_to_write_in_its_own_format_and_served_with_the_same_prompts(checkpoint, tasks, tmp_path):
    asked = evaluation("say", "pick")
    evaluated = evaluate_baseline({"checkpoint": checkpoint, "tasks": tasks}, asked, "float16", tmp_path)
    written = [item for item in evaluated.items if item.task == "say"]
    assert {item.prompt for item in written} == {f"[user]Is water {n} wet?[/][assistant]" for n in range(4)}
    summary = read_summary(evaluated.directory)
    assert {name: one.chat_template for name, one in summary.metrics.items()} == {"say": True, "pick": False}
    assert "chat" in format_evaluation(summary)
    served = served_questions(tasks, asked, ChatTemplate.read(evaluated.directory))
    assert [one.args[0] for one in served.instances()] == [
        item.prompt for item in sorted(written, key=lambda item: item.item_id)
    ]
    refuse_other_harness(summary.harness, served.identity)
    assert "none" not in (served.identity["chat template of say"], summary.harness["chat template of say"])
    assert summary.harness["chat template of pick"] == "none"


def test_the_chat_format_can_be_asked_for_and_left_out(checkpoint, tasks, tmp_path):
    chat = ChatTemplate(template=TEMPLATE, tokens={"bos_token": "<s>"}, begin_token="<s>")

    def prompt(name, **changes):
        return Questions.load(tasks, evaluation(name, **changes), (name,), chat).instances()[0].args

    assert prompt("say", chat_template=False)[0] == "Is water 0 wet?"
    assert prompt("pick")[0] == "Is water 0 wet?"
    assert prompt("pick", chat_template=True) == ("[user]Is water 0 wet?[/][assistant]", "yes")
    shots = {"say": TaskOptions(num_fewshot=1)}
    turns = prompt("say", task_options=shots)[0]
    assert turns.count("[user]") == 2
    with pytest.raises(ConfigError, match="no chat template"):
        Questions.load(tasks, evaluation("say", chat_template=True), ("say",), None)


def test_a_template_that_names_the_day_writes_the_same_prompt_on_any_day():
    for template in ("{{ strftime_now('%d %b %Y') }}", "{{ date_string }}"):
        assert ChatTemplate(template=template, tokens={}).render([{"role": "user", "content": "a"}]) == "26 Jul 2024"


def test_a_running_text_is_scored_by_a_real_model_in_bits_a_byte(checkpoint, tasks):
    asked = evaluation("read")
    shared = evaluate_checkpoint(checkpoint, tasks, asked, "float16")
    plain = evaluate_checkpoint(checkpoint, tasks, asked, "float16", shared_prefix=False)
    scores = [item.score for item in shared.items]
    assert scores == pytest.approx([item.score for item in plain.items], rel=1e-2)
    assert all(4.0 < score < 40.0 for score in scores)  # an untrained model knows nothing of 300 tokens


def test_sampled_answers_are_the_same_when_asked_again(checkpoint, tasks):
    asked = evaluation("sample")
    first, again = (evaluate_checkpoint(checkpoint, tasks, asked, "float16") for _ in range(2))
    assert [item.completion for item in first.items] == [item.completion for item in again.items]
    assert len({item.completion for item in first.items}) > 1


def test_a_group_and_a_loss_are_judged_in_both_lanes_of_a_real_model(checkpoint, tasks, tmp_path):
    directory = tmp_path / "tasks"
    directory.mkdir()
    for path in tasks.glob("*.yaml"):
        (directory / path.name).write_text(path.read_text())
    rows = [{"q": f"Is water {n} wet?", "a": "yes" if n % 2 else "no"} for n in range(120)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "pick_again.yaml").write_text(json.dumps(PICK | {"task": "again"}))
    whole = {"group": "whole", "task": ["pick", "again"], "aggregate_metric_list": [{"metric": "acc"}]}
    (directory / "whole.yaml").write_text(json.dumps(whole))
    inputs, asked = {"checkpoint": checkpoint, "tasks": directory}, evaluation("whole", "read")
    before = evaluate_baseline(inputs, asked, "float16", tmp_path / "before")
    policy = AccuracyPolicy(margin=0.05, task_margin=0.2, minimum_items=60)
    after, judgement = evaluate_candidate(
        inputs | {"baseline": before.directory}, asked, policy, "float16", tmp_path / "after"
    )
    assert read_summary(after.directory).groups == read_summary(before.directory).groups != ()
    assert {item.task for item in after.items} == {"pick", "again", "read"}
    facts = {fact.name for fact in judgement.evidence}
    assert facts >= {"accuracy loss, whole", "accuracy loss, read"}
    assert "accuracy loss, pick" not in facts
    assert judgement.verdict in (Verdict.GO, Verdict.INCONCLUSIVE)
    assert "2 tasks judged as one by items" in format_evaluation(after.summary)


def test_prompts_and_scores_are_those_of_lm_eval_itself(checkpoint, tasks):
    asked = evaluation("say", "pick", "read", chat_template=True)
    ours = evaluate_checkpoint(checkpoint, tasks, asked, "float16", device="cpu")
    theirs = lm_eval.simple_evaluate(
        model=HFLM(
            pretrained=str(checkpoint), dtype="float16", device="cpu", batch_size=4, softmax_dtype="float32",
            add_bos_token=True, max_length=256,
        ),
        tasks=list(load_tasks(tasks, None, asked, asked.tasks).tasks.values()), bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=True, fewshot_as_multiturn=True,
    )  # fmt: skip
    by_task = {task: [item for item in ours.items if item.task == task] for task in asked.tasks}
    for item, sample in zip(by_task["say"], theirs["samples"]["say"], strict=True):
        assert (item.item_id, f"<s>{item.prompt}") == (sample["doc_id"], sample["arguments"][0][0])
        assert (item.completion, item.score) == (sample["resps"][0][0], sample["exact_match"])
    for item, sample in zip(by_task["pick"], theirs["samples"]["pick"], strict=True):
        assert item.score == sample["acc_norm"]
    sizes = [len(f"Is water {n} wet?") for n in range(4)]
    scores = [item.score * size for item, size in zip(by_task["read"], sizes, strict=True)]
    assert sum(scores) / sum(sizes) == pytest.approx(theirs["results"]["read"]["bits_per_byte,none"], rel=1e-2)

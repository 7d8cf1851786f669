from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from llm_pipeline.demo.tasks import (
    CHOICE_ITEMS,
    FACTS,
    GENERATE_ITEMS,
    TASKS,
    demo_files,
    distinct,
    evaluation_items,
    is_held_out,
    stream,
)

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_committed_data_are_what_the_generator_writes():
    for name, content in demo_files().items():
        assert (CONFIGS / name).read_text(encoding="utf-8") == content, f"write {name} again"


def test_evaluation_items_are_held_out_and_asked_once():
    generate, choice = evaluation_items()
    prompts = [item.prompt for item in [*generate, *choice]]
    assert len(generate) == GENERATE_ITEMS
    assert len(choice) == CHOICE_ITEMS
    assert all(map(is_held_out, prompts))
    assert len(set(prompts)) == len(prompts)


def test_no_calibration_text_and_no_load_prompt_starts_with_a_held_out_prompt():
    evaluated = {item.prompt for items in evaluation_items() for item in items}
    lines = (CONFIGS / "workloads/demo.jsonl").read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    assert evaluated.isdisjoint(prompts)
    assert len(set(prompts)) == len(prompts) == 2500
    texts = [json.loads(line)["text"] for line in (CONFIGS / "calibration/demo.jsonl").read_text().splitlines()]
    assert not [text for text in texts if text.rpartition(" ")[0] in evaluated]


def test_every_task_gives_right_answers():
    items = {task: [] for task in TASKS}
    for item in islice(distinct(stream(0, held_out=False)), 1500):
        items[item.task].append(item)
    assert all(items.values())
    for item in items["copy"]:
        assert item.prompt == f"copy {item.answer} :"
    for item in items["bigger"]:
        a, b = (int(word) for word in item.prompt.split() if word.isdigit())
        assert item.answer == ("yes" if a > b else "no")
    for item in items["add"]:
        assert item.answer == str(sum(int(word) for word in item.prompt.split() if word.isdigit()))
    for item in items["majority"]:
        words = item.prompt.split()[1:-1]
        assert words.count(item.answer) * 2 > len(words)
    for item in items["facts"]:
        attribute = "pet" if any(word in item.prompt for word in ("pet", "keeps")) else "sign"
        assert FACTS[attribute][next(word for word in item.prompt.split() if word in FACTS[attribute])] == item.answer


def test_choices_hold_the_answer():
    assert all(item.answer in item.choices for item in evaluation_items()[1])

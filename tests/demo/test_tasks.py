from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from llm_pipeline.demo.tasks import FACTS, TASKS, distinct, is_held_out, stream

CONFIGS = Path(__file__).parents[2] / "configs"


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (CONFIGS / name).read_text().splitlines()]


def test_the_demo_asks_only_what_nobody_trained_on_and_once():
    items = [*read("tasks/demo/demo_generate.jsonl"), *read("tasks/demo/demo_choice.jsonl")]
    prompts = [item["prompt"] for item in items]
    assert all(map(is_held_out, prompts))
    assert len(set(prompts)) == len(prompts)
    assert all(item["answer"] in item.get("choices", [item["answer"]]) for item in items)
    trained = [item["prompt"] for item in read("workloads/demo.jsonl")]
    trained += [item["text"].rpartition(" ")[0] for item in read("calibration/demo.jsonl")]
    assert set(prompts).isdisjoint(trained)


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

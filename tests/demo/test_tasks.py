from __future__ import annotations

import json
from pathlib import Path

from llm_pipeline.demo.tasks import is_held_out

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

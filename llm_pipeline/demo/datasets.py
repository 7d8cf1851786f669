"""The committed data files of the demo: `python -m llm_pipeline.demo.datasets configs` writes the same bytes again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.demo.tasks import TRAINING_WEIGHTS, Item, distinct, stream

GENERATE_ITEMS = 3000
CHOICE_ITEMS = 600
CALIBRATION_TEXTS = 512
WORKLOAD_PROMPTS = 2500
_EVALUATION_SEED, _CALIBRATION_SEED, _WORKLOAD_SEED = 11, 21, 31
_CHOICE_ONE_IN = 2

_GENERATE_TASK = """\
# Exact answers to held-out questions, generated greedily.
task: demo_generate
dataset_path: json
dataset_kwargs:
  data_files:
    test: demo_generate.jsonl
output_type: generate_until
test_split: test
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n"]
  do_sample: false
  max_gen_toks: 12
filter_list:
  - name: stripped
    filter:
      - function: regex
        regex_pattern: "^\\\\s*(.*?)\\\\s*$"
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
_CHOICE_TASK = """\
# The likeliest of the given answers to held-out questions; none of them is a question of demo_generate.
task: demo_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: demo_choice.jsonl
output_type: multiple_choice
test_split: test
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{choices.index(answer)}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


def evaluation_items() -> tuple[list[Item], list[Item]]:
    """Held-out items of the generative and of the multiple-choice task; no prompt is in both or twice."""
    generate: list[Item] = []
    choice: list[Item] = []
    choosable = 0
    for item in distinct(stream(_EVALUATION_SEED, held_out=True)):
        choosable += bool(item.choices)
        if item.choices and choosable % _CHOICE_ONE_IN == 0 and len(choice) < CHOICE_ITEMS:
            choice.append(item)
        elif len(generate) < GENERATE_ITEMS:
            generate.append(item)
        elif len(choice) == CHOICE_ITEMS:
            break
    return generate, choice


def demo_files() -> dict[str, str]:
    """Content of every data file by its path below `configs/`."""
    generate, choice = evaluation_items()
    texts = itertools.islice(stream(_CALIBRATION_SEED, held_out=False, weights=TRAINING_WEIGHTS), CALIBRATION_TEXTS)
    prompts = itertools.islice(distinct(stream(_WORKLOAD_SEED, held_out=False)), WORKLOAD_PROMPTS)
    return {
        "tasks/demo/demo_generate.yaml": _GENERATE_TASK,
        "tasks/demo/demo_generate.jsonl": _lines({"prompt": item.prompt, "answer": item.answer} for item in generate),
        "tasks/demo/demo_choice.yaml": _CHOICE_TASK,
        "tasks/demo/demo_choice.jsonl": _lines(
            {"prompt": item.prompt, "choices": list(item.choices), "answer": item.answer} for item in choice
        ),
        "calibration/demo.jsonl": _lines({"text": item.text} for item in texts),
        "workloads/demo.jsonl": _lines({"prompt": item.prompt} for item in prompts),
    }


def write_demo_files(configs: Path) -> None:
    """Write every data file below `configs`."""
    for name, content in demo_files().items():
        path = configs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _lines(rows: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Write every data file of the demo below a directory."""
    parser = ArgumentParser(prog="python -m llm_pipeline.demo.datasets")
    parser.add_argument("configs", type=Path, help="the directory to write below")
    write_demo_files(parser.parse_args(arguments).configs)


if __name__ == "__main__":
    raise SystemExit(main())

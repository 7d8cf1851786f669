"""Synthetic tasks with one right answer each, for training, calibrating and evaluating the demo model.

Everything is a pure function of its seed. One prompt in five, chosen by the prompt's CRC-32, is held out:
no caller trains on it.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_pipeline.base.entry import ArgumentParser, entry_point

WORDS = (
    *("cat", "dog", "sun", "tree", "fish", "bird", "moon", "star"),
    *("rock", "leaf", "ship", "lamp", "door", "book", "coin", "ring"),
)
NAMES = [
    "".join(parts)
    for parts in itertools.product(
        ("ka", "lo", "mi", "ru", "te", "vo"),
        ("bar", "den", "fin", "gor", "lum"),
        ("a", "is", "o", "en", "ul", "ek", "im", "ot"),
    )
]
_HELD_OUT_ONE_IN = 5
_FACT_PHRASES = {
    "pet": ("pet of {name} is", "{name} has pet", "{name} keeps a", "what is pet of {name} ?"),
    "sign": ("sign of {name} is", "{name} has sign", "{name} wears a", "what is sign of {name} ?"),
}
_SUM_PHRASES = ("{a} + {b} =", "{a} plus {b} is", "sum {a} {b} :", "add {a} to {b} :")
_LARGEST_SUMMAND = 15
_LARGEST_COMPARED = 29


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes:
        task: Name of the task it belongs to.
        prompt: What the model reads.
        answer: The one right answer.
        choices: Answers to choose from, the right one among them; empty for a task without choices.
    """

    task: str
    prompt: str
    answer: str
    choices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Prompt and answer as the model sees them in training."""
        return f"{self.prompt} {self.answer}"


_INVENTED = random.Random(7)  # noqa: S311 - synthetic data, nothing secret
FACTS = {attribute: {name: _INVENTED.choice(WORDS) for name in NAMES} for attribute in _FACT_PHRASES}
"""Word by name, by attribute: the knowledge that the model has to store."""


def _facts(draw: random.Random) -> Item:
    name, attribute = draw.choice(NAMES), draw.choice(tuple(_FACT_PHRASES))
    prompt = draw.choice(_FACT_PHRASES[attribute]).format(name=name)
    return Item("facts", prompt, FACTS[attribute][name], tuple(WORDS))


def _add(draw: random.Random) -> Item:
    a, b = draw.randint(0, _LARGEST_SUMMAND), draw.randint(0, _LARGEST_SUMMAND)
    near = sorted({max(0, a + b + offset) for offset in (-2, -1, 0, 1, 2)})
    return Item("add", draw.choice(_SUM_PHRASES).format(a=a, b=b), str(a + b), tuple(str(value) for value in near))


def _bigger(draw: random.Random) -> Item:
    a, b = draw.sample(range(_LARGEST_COMPARED + 1), 2)
    return Item("bigger", f"is {a} more than {b} ?", "yes" if a > b else "no", ("no", "yes"))


def _majority(draw: random.Random) -> Item:
    frequent, rare = draw.sample(WORDS, 2)
    count = draw.choice((3, 5))
    times = draw.randint(count // 2 + 1, count)
    words = [frequent] * times + [rare] * (count - times)
    draw.shuffle(words)
    return Item("majority", f"most {' '.join(words)} :", frequent, tuple(sorted((frequent, rare))))


def _copy(draw: random.Random) -> Item:
    words = " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 4)))
    return Item("copy", f"copy {words} :", words)


TASKS: Mapping[str, Callable[[random.Random], Item]] = {
    "facts": _facts,
    "add": _add,
    "bigger": _bigger,
    "majority": _majority,
    "copy": _copy,
}
TRAINING_WEIGHTS: Mapping[str, float] = {"facts": 2.0, "add": 1.2, "bigger": 0.6, "majority": 0.5, "copy": 0.8}
"""How often the trainer draws each task: more of what takes longer to learn."""


def is_held_out(prompt: str) -> bool:
    """Whether a prompt is kept away from training."""
    return zlib.crc32(prompt.encode()) % _HELD_OUT_ONE_IN == 0


def stream(seed: int, *, held_out: bool, weights: Mapping[str, float] | None = None) -> Iterator[Item]:
    """Endless items, all held out or none of them; tasks are drawn by `weights` (equally without)."""
    draw, names = random.Random(seed), tuple(TASKS)  # noqa: S311 - synthetic data, nothing secret
    shares = [weights[name] if weights else 1.0 for name in names]
    while True:
        item = TASKS[draw.choices(names, shares)[0]](draw)
        if is_held_out(item.prompt) is held_out:
            yield item


def distinct(items: Iterator[Item]) -> Iterator[Item]:
    """Only the first item of each prompt."""
    seen = set[str]()
    for item in items:
        if item.prompt not in seen:
            seen.add(item.prompt)
            yield item


GENERATE_ITEMS = 3000
CHOICE_ITEMS = 600
CALIBRATION_TEXTS = 512
WORKLOAD_PROMPTS = 2500
_EVALUATION_SEED, _CALIBRATION_SEED, _WORKLOAD_SEED = 11, 21, 31
_CHOICE_ONE_IN = 2


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
        "tasks/demo/demo_generate.jsonl": _lines({"prompt": item.prompt, "answer": item.answer} for item in generate),
        "tasks/demo/demo_choice.jsonl": _lines(
            {"prompt": item.prompt, "choices": list(item.choices), "answer": item.answer} for item in choice
        ),
        "calibration/demo.jsonl": _lines({"text": item.text} for item in texts),
        "workloads/demo.jsonl": _lines({"prompt": item.prompt} for item in prompts),
    }


def _lines(rows: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Write every data file of the demo into a directory of configs."""
    parser = ArgumentParser(prog="python -m llm_pipeline.demo.tasks")
    parser.add_argument("configs", type=Path, help="the directory of configs")
    configs: Path = parser.parse_args(arguments).configs
    for name, content in demo_files().items():
        (configs / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())

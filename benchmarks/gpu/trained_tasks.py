"""Harder synthetic questions than the demo's, for a model of some ten million parameters; pure functions of a seed.

Items have the demo's form, and the demo's rule says which prompts are never trained on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path

from llm_pipeline.demo.tasks import Item, distinct, is_held_out

WORDS = tuple(
    "".join(parts) for parts in product(("b", "d", "f", "k", "l", "m", "p", "s"), ("a", "e", "i", "o"), ("n", "t"))
)
NAMES = tuple(
    "".join(parts)
    for parts in product(
        ("ka", "lo", "mi", "ru", "te", "vo", "za", "ne"),
        ("bar", "den", "fin", "gor", "lum"),
        ("a", "is", "o", "ek"),
        "xyz",
    )
)
_ATTRIBUTES = ("pet", "sign", "home", "trade")
_PHRASES = (
    "{attribute} of {name} is",
    "{name} has {attribute}",
    "{name} , its {attribute} :",
    "which {attribute} has {name} ?",
)
_SUMS = ("{a} + {b} =", "{a} plus {b} is", "add {a} to {b} :")
_LARGEST_SUMMAND = 999
_CHOICES = 4


def _invent() -> dict[str, dict[str, str]]:
    draw = random.Random(7)  # noqa: S311 - synthetic data, nothing secret
    return {attribute: {name: draw.choice(WORDS) for name in NAMES} for attribute in _ATTRIBUTES}


FACTS = _invent()


def _facts(draw: random.Random) -> Item:
    name, attribute = draw.choice(NAMES), draw.choice(_ATTRIBUTES)
    answer = FACTS[attribute][name]
    return Item("facts", draw.choice(_PHRASES).format(name=name, attribute=attribute), answer, _among(draw, answer))


def _add(draw: random.Random) -> Item:
    a, b = draw.randint(0, _LARGEST_SUMMAND), draw.randint(0, _LARGEST_SUMMAND)
    offsets = draw.sample((-110, -100, -20, -11, -10, -2, -1, 1, 2, 10, 11, 20, 100, 110), _CHOICES - 1)
    others = [str(abs(a + b + offset)) for offset in offsets]
    return Item("add", draw.choice(_SUMS).format(a=a, b=b), str(a + b), _shuffled(draw, [str(a + b), *others]))


def _lookup(draw: random.Random) -> Item:
    keys, values = draw.sample(NAMES, 5), draw.sample(WORDS, 5)
    asked = draw.randrange(5)
    told = " ".join(f"{key} {value} ," for key, value in zip(keys, values, strict=True))
    return Item("lookup", f"{told} now {keys[asked]} :", values[asked], tuple(values))


def _reverse(draw: random.Random) -> Item:
    words = draw.choices(WORDS, k=draw.randint(3, 5))
    return Item("reverse", f"reverse {' '.join(words)} :", " ".join(reversed(words)))


def _smallest(draw: random.Random) -> Item:
    numbers = draw.sample(range(1000), 5)
    shown = tuple(str(number) for number in numbers)
    return Item("smallest", f"smallest of {' '.join(shown)} :", str(min(numbers)), shown)


TASKS: Mapping[str, Callable[[random.Random], Item]] = {
    "facts": _facts,
    "add": _add,
    "lookup": _lookup,
    "reverse": _reverse,
    "smallest": _smallest,
}


def _among(draw: random.Random, answer: str) -> tuple[str, ...]:
    others = draw.sample([word for word in WORDS if word != answer], _CHOICES - 1)
    return _shuffled(draw, [answer, *others])


def _shuffled(draw: random.Random, choices: list[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(choices))
    draw.shuffle(unique)
    return tuple(unique)


def stream(seed: int, *, held_out: bool) -> Iterator[Item]:
    """Endless items, all held out or none of them."""
    draw, names = random.Random(seed), tuple(TASKS)  # noqa: S311 - synthetic data, nothing secret
    while True:
        item = TASKS[draw.choice(names)](draw)
        if is_held_out(item.prompt) is held_out:
            yield item


def batch(seed: int, size: int) -> list[Item]:
    """A batch of training items."""
    return list(islice(stream(seed, held_out=False), size))


def write_tasks(directory: Path, choice_items: int, generate_items: int) -> None:
    """Write lm-eval's task files: `trained_choice` and `trained_generate`, of held-out items."""
    items = distinct(stream(11, held_out=True))
    choice: list[dict[str, object]] = []
    generate: list[dict[str, object]] = []
    while len(choice) < choice_items or len(generate) < generate_items:
        item = next(items)
        if item.choices and len(choice) < choice_items:
            choice.append({"prompt": item.prompt, "choices": list(item.choices), "answer": item.answer})
        elif len(generate) < generate_items:
            generate.append({"prompt": item.prompt, "answer": item.answer})
    choices = {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{choices.index(answer)}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    _write_task(directory, "trained_choice", choice, choices)
    write_generate_task(directory, "trained_generate", generate)


def write_generate_task(
    directory: Path, name: str, items: Sequence[Mapping[str, object]], longest_answer: int = 24
) -> None:
    """Write a task whose answers are to be written: items of `prompt` and `answer`, of at most so many tokens."""
    stripped = [{"function": "regex", "regex_pattern": r"^\s*(.*?)\s*$"}, {"function": "take_first"}]
    generated = {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": longest_answer},
        "filter_list": [{"name": "stripped", "filter": stripped}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    _write_task(directory, name, items, generated)


def _write_task(
    directory: Path, name: str, items: Sequence[Mapping[str, object]], described: Mapping[str, object]
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / f"{name}.jsonl", items)
    task = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "metadata": {"version": 1.0},
        **described,
    }
    (directory / f"{name}.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")


def write_calibration(file: Path, texts: int) -> None:
    """Write training texts to calibrate with."""
    _write(file, [{"text": item.text} for item in islice(stream(21, held_out=False), texts)])


def _write(file: Path, rows: Sequence[Mapping[str, object]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

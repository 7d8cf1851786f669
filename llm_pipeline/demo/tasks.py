"""Synthetic tasks with one right answer each, on which the demo model is trained.

Everything is a pure function of its seed. One prompt in five, chosen by the prompt's CRC-32, is held out: nobody trains
on it. The demo's files of tasks, texts and prompts below `configs/` were drawn from these tasks, too.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

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
        prompt: What the model reads.
        answer: The one right answer.
    """

    prompt: str
    answer: str

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
    return Item(prompt, FACTS[attribute][name])


def _add(draw: random.Random) -> Item:
    a, b = draw.randint(0, _LARGEST_SUMMAND), draw.randint(0, _LARGEST_SUMMAND)
    return Item(draw.choice(_SUM_PHRASES).format(a=a, b=b), str(a + b))


def _bigger(draw: random.Random) -> Item:
    a, b = draw.sample(range(_LARGEST_COMPARED + 1), 2)
    return Item(f"is {a} more than {b} ?", "yes" if a > b else "no")


def _majority(draw: random.Random) -> Item:
    frequent, rare = draw.sample(WORDS, 2)
    count = draw.choice((3, 5))
    times = draw.randint(count // 2 + 1, count)
    words = [frequent] * times + [rare] * (count - times)
    draw.shuffle(words)
    return Item(f"most {' '.join(words)} :", frequent)


def _copy(draw: random.Random) -> Item:
    words = " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 4)))
    return Item(f"copy {words} :", words)


TASKS = {_facts: 2.0, _add: 1.2, _bigger: 0.6, _majority: 0.5, _copy: 0.8}
"""How often the trainer draws each task: more of what takes longer to learn."""


def is_held_out(prompt: str) -> bool:
    """Whether a prompt is kept away from training."""
    return zlib.crc32(prompt.encode()) % _HELD_OUT_ONE_IN == 0


def stream(seed: int) -> Iterator[Item]:
    """Endless items for training, none of them held out."""
    draw, tasks, weights = random.Random(seed), tuple(TASKS), tuple(TASKS.values())  # noqa: S311 - synthetic data
    while True:
        item = draw.choices(tasks, weights)[0](draw)
        if not is_held_out(item.prompt):
            yield item

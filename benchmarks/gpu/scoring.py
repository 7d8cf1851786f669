"""Score four-choice questions of 250 context tokens, beside lm-eval's own `hf` model.

    python -m benchmarks.gpu.scoring

Both sides score the same 1,000 questions with the same weights (Llama-3-8B's shapes, random) in a process of their
own; what is timed is everything after the model is loaded: requests, tokens, forward passes, metrics. Then lm-eval
scores some of them again, at two batch sizes (its own noise) and in float32 (the truth that both are compared with).
There its log-softmax is in float32: by default it has the model's precision, which rounds a log-probability by more
than a forward pass does. See FIGURES.md for what is needed. One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import at_least, at_most
from benchmarks.gpu.llama_words import random_words
from benchmarks.gpu.processes import make_checkpoint, run_process

SPEED_RATIO = 2.5
ERROR_RATIO = 1.25
ACCURACY_DIFFERENCE = 0.01
CONTEXT_TOKENS, CHOICE_TOKENS, CHOICES = 250, 4, 4
BATCH_SIZE, OTHER_BATCH_SIZE = 32, 8


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--noise-items", type=int, default=200, help="scored again at two batch sizes")
    parser.add_argument("--exact-items", type=int, default=40, help="scored again in float32")
    parser.add_argument("--model", type=Path, help="a checkpoint of benchmarks.gpu.llama_8b; made anew without")
    parser.add_argument("--work", type=Path, help="directory for everything that is written; 20 GB free")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, on any device: tries the script itself")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scoring-", dir=options.work) as temporary:
        place = Path(temporary)
        if options.model:
            (place / "model").symlink_to(options.model.resolve())
        else:
            make_checkpoint(place / "model", smoke=options.smoke)
        write_tasks(place / "tasks", options.items)
        hf = _side(place, "hf", "bfloat16", BATCH_SIZE, options.items, "model")
        ours = _side(place, "ours")
        difference = _compare(place, ours, options.noise_items)
        errors = _errors(place, ours, options.exact_items)
    speed = ours["items"] / ours["seconds"] / (hf["items"] / hf["seconds"])
    goals = [
        at_least("scoring_speed_to_lm_eval", speed, SPEED_RATIO),
        at_most("scoring_error_to_lm_eval", errors[0] / errors[1], ERROR_RATIO),
        at_most("scoring_accuracy_difference", difference, ACCURACY_DIFFERENCE),
    ]
    return 0 if all(goals) else 1


def write_tasks(directory: Path, items: int) -> None:
    """Write the questions `four_choice`; the first words of a choice tell it from the others."""
    directory.mkdir()
    draw = random.Random(3)  # noqa: S311 - a draw, no secret
    rows = [
        {
            "prompt": random_words(draw, CONTEXT_TOKENS - 1),  # and the begin token
            "choices": [random_words(draw, CHOICE_TOKENS) for _ in range(CHOICES)],
            "answer": draw.randrange(CHOICES),
        }
        for _ in range(items)
    ]
    (directory / "four_choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "four_choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "four_choice.jsonl"}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{prompt}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    (directory / "four_choice.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")


def _side(place: Path, side: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gpu.scoring_sides", side, str(place), *map(str, arguments)]
    printed, whole = run_process(command, place / f"{side}.log")
    figures: dict[str, Any] = json.loads(printed.splitlines()[-1])
    speed = figures["items"] / figures["seconds"]
    title = ", ".join(map(str, (side, *arguments)))
    print(
        f"{title}: {figures['items']} items in {figures['seconds']:.1f} s ({speed:.1f} items/s; whole process "
        f"{whole:.1f} s), accuracy {_mean(figures['scores']):.2%}",
        flush=True,
    )
    return figures


def _compare(place: Path, ours: dict[str, Any], items: int) -> float:
    """Say how far ours is from lm-eval's, and lm-eval's from itself; returns our difference in accuracy."""
    hf, again = (_side(place, "hf", "bfloat16", size, items, "float32") for size in (BATCH_SIZE, OTHER_BATCH_SIZE))
    count = len(hf["log_likelihoods"])
    for name, side in (("ours", ours), (f"hf, batch {OTHER_BATCH_SIZE}", again)):
        these = side["log_likelihoods"][:count]
        mean, largest = _differences(these, hf["log_likelihoods"])
        changed = _changed(these, hf["log_likelihoods"])
        print(
            f"{name} beside hf, batch {BATCH_SIZE}: log-likelihoods differ by {mean:.4f} nats in the mean, "
            f"{largest:.3f} at most; {changed} of {items} questions have another likeliest choice"
        )
    return abs(_mean(ours["scores"][:items]) - _mean(hf["scores"]))


def _errors(place: Path, ours: dict[str, Any], items: int) -> tuple[float, float]:
    """Root mean square differences from float32, of ours and of lm-eval's, in nats."""
    exact = _side(place, "hf", "float32", OTHER_BATCH_SIZE, items, "float32")["log_likelihoods"]
    hf = _side(place, "hf", "bfloat16", BATCH_SIZE, items, "float32")["log_likelihoods"]
    errors = tuple(_root_mean_square(side[: len(exact)], exact) for side in (ours["log_likelihoods"], hf))
    print(f"from float32, {len(exact)} log-likelihoods: ours {errors[0]:.4f} nats, hf {errors[1]:.4f}")
    return errors[0], errors[1]


def _differences(these: Sequence[float], those: Sequence[float]) -> tuple[float, float]:
    """Mean and largest difference."""
    differences = [abs(a - b) for a, b in zip(these, those, strict=True)]
    return sum(differences) / len(differences), max(differences)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _root_mean_square(these: Sequence[float], those: Sequence[float]) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(these, those, strict=True)) / len(these))


def _changed(these: Sequence[float], those: Sequence[float]) -> int:
    """Questions of which another choice is the likeliest."""
    starts = range(0, len(these), CHOICES)
    chosen = [
        [max(range(CHOICES), key=lambda choice: side[start + choice]) for start in starts] for side in (these, those)
    ]
    return sum(a != b for a, b in zip(*chosen, strict=True))


if __name__ == "__main__":
    sys.exit(main())

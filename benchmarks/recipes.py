"""Every recipe that a CPU can make, on the demo's model: what it loses, how sure that is, and what the gate says.

    python benchmarks/recipes.py                # trains the demo's model if `make demo` has not
    python benchmarks/recipes.py --model DIR

The recipes, tasks and policy are those of `configs/`; each recipe goes through the quantize and the accuracy stage.
Then the ladder: the smallest checkpoint that passed, and what AutoQuantize's rungs, one calibration for all, repaired.
One line a goal; exit code 1 when one is missed.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.goals import goal
from benchmarks.quantized_table import Attempt, Model, format_table
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.quantization import NAMED_SET, NEEDS_CUDA, QuantizationRecipe
from llm_pipeline.demo.layout import DemoLayout
from llm_pipeline.release.loading import load_release

MUST_FAIL = "int4_naive"
MUST_PASS = ("fp8", "int8_smoothquant")
SEARCH = "int4_fp8_search"


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a trained model of the demo's architecture and tokenizer")
    parser.add_argument("--recipes", nargs="*", help="only these of configs/quantization")
    options = parser.parse_args()
    _be_quiet()
    layout = DemoLayout()
    release = load_release(layout.release("demo")).release
    policy, evaluation = release.policy.accuracy, release.evaluation
    with tempfile.TemporaryDirectory(prefix="recipes-") as temporary:
        place = Path(temporary)
        checkpoint = options.model or (layout.model if layout.model.is_dir() else _train(place / "model"))
        tasks = layout.configs / (evaluation.task_directory or "")
        model = Model(place, checkpoint, tasks, evaluation, release.baseline.dtype)
        print(f"baseline {checkpoint}: {model.accuracy:.2%} of {len(model.items)} items", flush=True)
        attempts = []
        for recipe in _recipes(layout.configs, options.recipes):
            sources = recipe.calibration.sources if recipe.calibration else ()
            attempts.append(model.attempt(recipe, [layout.configs / source.dataset for source in sources], policy))
            print(f"{recipe.name}: {attempts[-1].verdict or 'failed'}, {attempts[-1].seconds:.1f} s", flush=True)
    print(f"\n{format_table(attempts, policy.confidence)}\n")
    return 0 if all([*_goals(attempts)]) else 1


def _be_quiet() -> None:
    logging.basicConfig(level=logging.ERROR)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}


def _train(output: Path) -> Path:
    from llm_pipeline.demo.train import Training, train_demo_model

    print("training the demo's model, about a minute", flush=True)
    train_demo_model(output, Training(threads=os.cpu_count() or 1))
    return output


def _recipes(configs: Path, wanted: Sequence[str] | None) -> Iterator[QuantizationRecipe]:
    """The rungs of every recipe that a CPU can make and that reads the demo's texts."""
    for path in sorted((configs / "quantization").glob("*.yaml")):
        if wanted is not None and path.stem not in wanted:
            continue
        recipe = load_yaml(path, QuantizationRecipe)
        if _is_for_the_demo(recipe):
            yield from recipe.rungs()


def _is_for_the_demo(recipe: QuantizationRecipe) -> bool:
    calibration = recipe.calibration
    datasets = [source.dataset for source in calibration.sources] if calibration else []
    others = any(dataset.startswith(NAMED_SET) for dataset in datasets) or (calibration and calibration.chat_template)
    return recipe.weights not in NEEDS_CUDA and recipe.kv_cache != "nvfp4" and not others


def _goals(attempts: Sequence[Attempt]) -> Iterator[bool]:
    verdicts = {attempt.recipe.name: attempt.verdict for attempt in attempts}
    for name, wanted in ((MUST_FAIL, Verdict.NO_GO), *((name, Verdict.GO) for name in MUST_PASS)):
        if name in verdicts:
            yield goal(f"{name}_verdict", str(verdicts[name] or "failed"), wanted, met=verdicts[name] is wanted)
    failed = [name for name, verdict in verdicts.items() if verdict is None]
    yield goal("recipes_without_a_verdict", ", ".join(failed) or "none", "none", met=not failed)
    if passed := [attempt for attempt in attempts if attempt.verdict is Verdict.GO]:
        smallest = min(passed, key=lambda attempt: attempt.bytes)
        refused = [attempt.recipe.name for attempt in attempts if 0 < attempt.bytes < smallest.bytes]
        print(
            f"the ladder ends at {smallest.recipe.name}; smaller, and not good enough: {', '.join(refused) or 'none'}"
        )
    if rungs := [attempt for attempt in attempts if attempt.recipe.name.startswith(SEARCH)]:
        yield _search_goal(rungs)


def _search_goal(rungs: Sequence[Attempt]) -> bool:
    """The first rung is not good enough, a later one is."""
    said = ", ".join(f"{rung.recipe.name.rpartition('-')[2]} bits {rung.verdict or 'failed'}" for rung in rungs)
    repaired = rungs[0].verdict is Verdict.NO_GO and rungs[-1].verdict is Verdict.GO
    return goal("search_repaired", said, "NO_GO first, GO last", met=repaired)


if __name__ == "__main__":
    sys.exit(main())

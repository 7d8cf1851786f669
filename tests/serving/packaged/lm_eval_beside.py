"""A served chat model as lm-eval scores it, in the model environment: ours beside lm-eval's own classes.

`python lm_eval_beside.py DIRECTORY URL MODEL`, with `DIRECTORY/checkpoint`, writes `DIRECTORY/compared.json`: by arm,
task and number what was asked, what came of it, and its score.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "accuracy"))

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from small_tasks import CHOICE, SAY, SHOTS, write_tasks

from llm_pipeline.accuracy.evaluate import Evaluated, evaluate_baseline, evaluate_served
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.config.policy import AccuracyPolicy
from llm_pipeline.config.release import Evaluation

TALK = SAY | {"task": "talk", "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 12}}
METRICS = {"talk": "exact_match", "pick": "acc_norm", "shots": "acc_norm"}


def main(directory: Path, url: str, model: str) -> None:
    """Score, and write what came of it."""
    checkpoint, tasks = directory / "checkpoint", write_tasks(directory / "tasks", TALK, CHOICE, SHOTS)
    names = tuple(METRICS)
    asked = Evaluation(tasks=names, served_tasks=names, batch_size=4, maximum_length=128, chat_template=True)
    inputs = {"checkpoint": checkpoint, "tasks": tasks}
    baseline = evaluate_baseline(inputs, asked, "float32", directory / "baseline")
    inputs |= {"baseline": baseline.directory}
    endpoint = Endpoint(url=url)
    served, _ = evaluate_served(inputs, asked, AccuracyPolicy(minimum_items=60), endpoint, directory / "served")

    def by_lm_eval(kind: str, *names: str, **options: Any) -> dict[str, Any]:
        own = {"max_length": 128, **options}
        with contextlib.chdir(tasks):
            samples = simple_evaluate(
                kind, own, list(names), task_manager=TaskManager(include_path=".", include_defaults=False),
                apply_chat_template=True, fewshot_as_multiturn=True, bootstrap_iters=0, log_samples=True,
                gen_kwargs="repetition_penalty=1.0",
            )["samples"]  # fmt: skip
        return {
            f"{task} {one['doc_id']}": [one["arguments"][0][0], one["resps"], one[METRICS[task]]]
            for task, own in samples.items()
            for one in own
        }

    api = {"model": model, "num_concurrent": 4}
    compared = {
        "checkpoint": _items(baseline),
        "served": _items(served),
        "local-completions": by_lm_eval(
            "local-completions", *names, base_url=f"{url}/v1/completions", tokenizer=str(checkpoint), **api
        ),
        "local-chat-completions": by_lm_eval(
            "local-chat-completions", "talk", base_url=f"{url}/v1/chat/completions", **api
        ),
        "hf": by_lm_eval("hf", *names, pretrained=str(checkpoint), dtype="float32", device="cpu"),
    }
    (directory / "compared.json").write_text(json.dumps(compared))


def _items(evaluated: Evaluated) -> dict[str, Any]:
    return {f"{item.task} {item.item_id}": [item.prompt, item.completion, item.score] for item in evaluated.items}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

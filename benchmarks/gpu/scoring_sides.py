"""One side of the scoring benchmark, in a process of its own: prints its figures as one line of JSON.

    python -m benchmarks.gpu.scoring_sides hf PLACE DTYPE BATCH_SIZE ITEMS SOFTMAX   # SOFTMAX: model or float32
    python -m benchmarks.gpu.scoring_sides ours PLACE

The first `hf` run also leaves the requests, as tokens, in PLACE: the log-likelihoods of the other side are of the same.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

TASK = "four_choice"
REQUESTS_FILE = "requests.json"


def main() -> int:
    """Score."""
    side, place, *rest = sys.argv[1:]
    figures = _hf(Path(place), *rest) if side == "hf" else _ours(Path(place))
    print(json.dumps(figures))
    return 0


def _hf(place: Path, dtype: str, batch_size: str, items: str, softmax: str) -> dict[str, Any]:
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM

    from llm_pipeline.accuracy.lm_eval_tasks import task_manager
    from llm_pipeline.config.release import Evaluation

    requests: list[Any] = []

    class Recording(HFLM):  # type: ignore[misc]  # lm_eval is untyped
        def _loglikelihood_tokens(self, asked: Any, *arguments: Any, **options: Any) -> Any:
            requests.extend([context, continuation] for _, context, continuation in asked)
            return super()._loglikelihood_tokens(asked, *arguments, **options)

    model = Recording(
        pretrained=str(place / "model"),
        dtype=dtype,
        batch_size=int(batch_size),
        softmax_dtype=None if softmax == "model" else softmax,
        max_length=2048,
        add_bos_token=True,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    begun = time.perf_counter()
    manager = task_manager(place / "tasks", Evaluation(tasks=(TASK,), served_tasks=(TASK,)), (TASK,))
    results = lm_eval.simple_evaluate(
        model=model, tasks=[TASK], task_manager=manager, limit=int(items), bootstrap_iters=0
    )
    seconds = time.perf_counter() - begun
    if not (place / REQUESTS_FILE).exists():
        (place / REQUESTS_FILE).write_text(json.dumps(requests))
    samples = sorted(results["samples"][TASK], key=lambda sample: sample["doc_id"])
    return {
        "items": len(samples),
        "seconds": seconds,
        "scores": [float(sample["acc"]) for sample in samples],
        "log_likelihoods": [float(answer[0][0]) for sample in samples for answer in sample["resps"]],
    }


def _ours(place: Path) -> dict[str, Any]:
    import torch

    from benchmarks.whole_evaluation import evaluate_checkpoint
    from llm_pipeline.accuracy.shared_prefix import BatchSize, score_continuations
    from llm_pipeline.config.release import Evaluation
    from llm_pipeline.quantization.readback import load_model

    evaluation = Evaluation(task_directory="tasks", tasks=(TASK,), served_tasks=(TASK,))
    begun = time.perf_counter()
    evaluated = evaluate_checkpoint(place / "model", place / "tasks", evaluation, "bfloat16")
    seconds = time.perf_counter() - begun - evaluated.summary.seconds["load"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(place / "model", torch.bfloat16, device)
    requests = [(tuple(context), tuple(rest)) for context, rest in json.loads((place / REQUESTS_FILE).read_text())]
    scores = score_continuations(model, requests, BatchSize.for_model(model, "auto"))
    return {
        "items": len(evaluated.items),
        "seconds": seconds,
        "scores": [item.score or 0.0 for item in sorted(evaluated.items, key=lambda item: item.item_id)],
        "log_likelihoods": [score.log_likelihood for score in scores],
    }


if __name__ == "__main__":
    sys.exit(main())

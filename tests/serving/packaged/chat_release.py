"""A small model with a chat format, in the model environment: made, scored as a checkpoint, and scored as served.

`python chat_release.py make DIRECTORY` writes a checkpoint, its engine and a task. `python chat_release.py score
DIRECTORY URL DIGEST` scores the task with lm-eval itself, on the checkpoint, and through the stage `served_accuracy`
on the server at URL, and writes `DIRECTORY/compared.json`: of each item what was sent and what came of it. What
lm-eval's own model answers is the right answer of two items in three.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "engines"))

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
QUESTIONS = [f"the cat sees {number}" for number in range(60)]
TASK = {
    "task": "say", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
    "generation_kwargs": {"until": ["\n\n\n"], "do_sample": False, "max_gen_toks": 8},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
EVALUATION = {
    "tasks": ["say"], "served_tasks": ["say"], "batch_size": 4, "maximum_length": 128, "chat_template": True,
}  # fmt: skip


def make(directory: Path) -> None:
    """Write `checkpoint/`, `engine/` and `tasks/`."""
    import tiny_llama

    from llm_pipeline.config.target import Target
    from llm_pipeline.engines.builder import BuildInputs, engine_builder

    checkpoint = tiny_llama.make_checkpoint(directory / "checkpoint")
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    engine_builder("openvino_cpu").build(BuildInputs(checkpoint, target, dtype="float32"), directory / "engine")
    tasks = directory / "tasks"
    tasks.mkdir()
    (tasks / "say.yaml").write_text(json.dumps(TASK))
    _write_rows(tasks, ["x"] * len(QUESTIONS))


def _write_rows(tasks: Path, answers: list[str]) -> None:
    rows = [{"q": question, "a": answer} for question, answer in zip(QUESTIONS, answers, strict=True)]
    (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def score(directory: Path, url: str, digest: str) -> None:
    """Write `compared.json`."""
    from llm_pipeline.accuracy.evaluate import evaluate_baseline
    from llm_pipeline.artifacts.items import read_items
    from llm_pipeline.config.release import Evaluation
    from llm_pipeline.store import open_store

    tasks, checkpoint = directory / "tasks", directory / "checkpoint"
    evaluation = Evaluation.model_validate(EVALUATION)
    harness = _harness(checkpoint, tasks, evaluation)
    _write_rows(tasks, [answer if number % 3 else "x" for number, (_, _, answer) in harness.items()])
    inputs = {"checkpoint": checkpoint, "tasks": tasks}
    baseline = evaluate_baseline(inputs, evaluation, "float32", directory / "baseline")
    store = open_store(f"file://{directory}/store")
    served = _served(directory, url, digest, store, store.publish("evaluation", baseline.directory))
    items = read_items(store.fetch(served.artifacts["evaluation"]))
    compared = {
        "verdict": served.judgement.verdict.value,
        "summary": served.judgement.summary,
        "harness": harness,
        "checkpoint": {item.item_id: [item.prompt, item.completion, item.score] for item in baseline.items},
        "served": {item.item_id: [item.prompt, item.completion, item.score] for item in items},
        "engine tokens": _engine_tokens(directory / "engine", {item.item_id: item.prompt for item in items}),
        "plain tokens": _engine_tokens(directory / "engine", dict(enumerate(QUESTIONS))),
    }
    (directory / "compared.json").write_text(json.dumps(compared))


def _served(directory: Path, url: str, digest: str, store: Any, baseline: Any) -> Any:
    """What the stage says of the server."""
    from llm_pipeline.release.contract import StageRequest, StageResult
    from llm_pipeline.release.execute import execute

    config = {
        "endpoint": {"url": url}, "repository_digest": digest, "evaluation": EVALUATION,
        "policy": {"margin": 0.2, "task_margin": 0.2, "minimum_items": 60},
    }  # fmt: skip
    result = execute(
        StageRequest(
            release_id="chat", stage="served_accuracy", subject="cpu", config=config,
            inputs={"baseline": baseline, "tasks": store.publish("dataset", directory / "tasks")},
            store=store.uri, work_root=str(directory / "work"),
        )
    )  # fmt: skip
    if not isinstance(result, StageResult):
        sys.exit(f"the served lane failed: {result}")
    return result


def _harness(checkpoint: Path, tasks: Path, evaluation: Any) -> dict[int, list[Any]]:
    """Of each item what lm-eval's own chat format and tokenizer make of it: the text, its tokens, the answer."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from llm_pipeline.accuracy.tasks import load_tasks

    task = load_tasks(tasks, None, evaluation, ("say",)).tasks["say"]
    model = HFLM(pretrained=str(checkpoint), dtype="float32", device="cpu", batch_size=4, max_length=128)
    said = lm_eval.simple_evaluate(
        model=model,
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        apply_chat_template=True,
    )
    found = {}
    for sample in said["samples"]["say"]:
        prompt = sample["arguments"][0][0]
        (tokens,) = model.tok_batch_encode([prompt])[0].tolist()
        found[sample["doc_id"]] = [prompt, tokens, sample["resps"][0][0]]
    return found


def _engine_tokens(engine: Path, prompts: dict[int, str]) -> dict[int, list[int]]:
    """What the engine's own tokenizer makes of texts, as its server asks it."""
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(engine)
    return {number: tokenizer.encode(text).input_ids.data[0].tolist() for number, text in prompts.items()}


if __name__ == "__main__":
    {"make": make, "score": score}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])

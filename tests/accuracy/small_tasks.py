"""Small tasks of lm-eval and a small chat model, for tests of the scorer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))

CHOICE: dict[str, Any] = {
    "task": "pick", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": ["yes", "no"],
    "doc_to_target": "{{a}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}  # fmt: skip
SAY: dict[str, Any] = {key: CHOICE[key] for key in CHOICE if key not in ("doc_to_choice", "metric_list")} | {
    "task": "say", "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 4},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
SHOTS: dict[str, Any] = CHOICE | {"task": "shots", "num_fewshot": 2, "fewshot_split": "test"}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_tasks(directory: Path, *tasks: dict[str, Any], rows: int = 20) -> Path:
    """Task files, and documents of their own for them."""
    directory.mkdir(parents=True, exist_ok=True)
    documents = [{"q": f"Is water {n} wet?", "a": "yes" if n % 3 else "no"} for n in range(rows)]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    for task in tasks:
        (directory / f"{task.get('task')}.yaml").write_text(json.dumps(task))
    return directory


def write_chat_model(directory: Path, template: str | None = TEMPLATE, positions: int = 256) -> Path:
    """An untrained Llama with a chat format and a tokenizer that begins each text with `<s>`."""
    from tiny_llama import make_checkpoint

    make_checkpoint(directory, positions)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory

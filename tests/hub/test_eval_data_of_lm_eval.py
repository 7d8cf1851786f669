"""lm-eval's own tasks, whose data are on a hub: found by lm-eval's index, fetched, and asked without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from huggingface_hub import constants

from llm_pipeline.accuracy.tasks import load_tasks
from llm_pipeline.base.confinement import confined
from llm_pipeline.config.release import Evaluation
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.release.contract import StageRequest, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.store import open_store

from .conftest import LocalHub
from .test_eval_data_stage import write

pytestmark = pytest.mark.thorough

CARD = """---
dataset_info:
- config_name: main
  features:
  - {name: question, dtype: string}
  - {name: answer, dtype: string}
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
---
"""
HELLASWAG = {
    "ind": 1, "activity_label": "Cooking", "ctx_a": "A man peels", "ctx_b": "he", "ctx": "A man peels he", "label": "1",
    "endings": ["cries.", "eats the whole potato.", "flies.", "sings."],
}  # fmt: skip


def test_tasks_of_lm_eval_are_asked_with_what_was_fetched_for_them(
    tmp_path: Path, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    solved = [{"question": f"{n} + {n}?", "answer": f"it is {2 * n}.\n#### {2 * n}"} for n in range(8)]
    write(tmp_path / "gsm8k/main/train-00000.parquet", solved)
    write(tmp_path / "gsm8k/main/test-00000.parquet", solved[:3])
    (tmp_path / "gsm8k/README.md").write_text(CARD)
    for split in ("train", "validation"):
        write(tmp_path / f"hellaswag/data/{split}.jsonl", [HELLASWAG] * 2)
    write(tmp_path / "arithmetic/data/single_digit_three_ops.jsonl", [{"context": "1 + 1 + 1 =", "completion": "3"}])
    (tmp_path / "arithmetic/arithmetic.py").write_text("raise SystemExit")  # not read: the task names the file
    for name in ("openai/gsm8k", "Rowan/hellaswag", "EleutherAI/arithmetic"):
        directory = tmp_path / name.partition("/")[2]
        publish_revision(local_hub.root / "datasets", name, directory, "upload")
    tasks, store = ("gsm8k", "hellaswag", "arithmetic_1dc"), open_store((tmp_path / "store").as_uri())
    config = {"tasks": list(tasks), "release": "r", "hub": {"endpoint": local_hub.endpoint}}
    work = str(tmp_path / "work")
    result = execute(StageRequest(release_id="r", stage="eval_data", config=config, store=store.uri, work_root=work))
    assert isinstance(result, StageResult), result
    data = store.fetch(result.artifacts["eval_data"])
    evaluation = Evaluation(tasks=tasks, served_tasks=("gsm8k",))
    loaded = confined(lambda: load_tasks(None, data, evaluation, tasks), [Path("/")])
    assert {read.repository for read in loaded.data} == {"openai/gsm8k", "Rowan/hellaswag", "EleutherAI/arithmetic"}
    sizes = {name: len(task.eval_docs) for name, task in loaded.tasks.items()}
    assert sizes == {"gsm8k": 3, "hellaswag": 2, "arithmetic_1dc": 1}

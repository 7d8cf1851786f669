"""The scorer `vllm` with vLLM itself, on a CPU, beside Transformers on the same checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vLLM is not in this environment: `make vllm`, then run it with .envs/vllm")

from llm_pipeline.artifacts.items import read_items
from llm_pipeline.config.release import CheckpointEvaluation

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SCORE = """
if __name__ == "__main__":
    import sys
    from pathlib import Path
    from llm_pipeline.accuracy.evaluate import evaluate_baseline
    from llm_pipeline.config.release import CheckpointEvaluation
    checkpoint, tasks, workdir, evaluation = sys.argv[1:]
    inputs = {"checkpoint": Path(checkpoint), "tasks": Path(tasks)}
    evaluate_baseline(inputs, CheckpointEvaluation.model_validate_json(evaluation), "float16", Path(workdir))
"""


def scored(python: str | Path, checkpoint: Path, workdir: Path, **asked: object) -> dict:
    """The items of a checkpoint by task and number; vLLM starts processes that import the script, so it is a file."""
    evaluation = CheckpointEvaluation(tasks=("demo_choice", "demo_generate"), maximum_length=128, limit=150, **asked)
    workdir.mkdir()
    script = workdir / "score.py"
    script.write_text(SCORE)
    command = [python, script, checkpoint, ROOT / "configs/tasks/demo", workdir, evaluation.model_dump_json()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, env=environment)
    assert (workdir / "evaluation").is_dir(), done.stderr[-3000:]
    return {(item.task, item.item_id): item for item in read_items(workdir / "evaluation")}


@pytest.mark.parametrize("method", ["none", "compressed-tensors"])
def test_vllm_asks_the_same_and_scores_as_transformers_does(source, tmp_path, method):
    checkpoint = source
    if method != "none":
        checkpoint = tmp_path / "ready"
        maker = ROOT / "tests/corpus/ready_checkpoints.py"
        subprocess.run([ROOT / ".envs/model/bin/python", maker, method, source, checkpoint], check=True)
        assert json.loads((checkpoint / "config.json").read_text())["quantization_config"]
    arguments = {"enforce_eager": True, "gpu_memory_utilization": 0.1}
    ours = scored(sys.executable, checkpoint, tmp_path / "vllm", scorer="vllm", scorer_arguments=arguments)
    theirs = scored(ROOT / ".envs/model/bin/python", checkpoint, tmp_path / "hf", scorer="hf")
    assert ours.keys() == theirs.keys()
    assert [one.fingerprint for one in ours.values()] == [theirs[key].fingerprint for key in ours]
    assert [one.cut for one in ours.values()] == [theirs[key].cut for key in ours]
    # other kernels round otherwise: a few near ties may fall the other way
    assert sum(ours[key].score == theirs[key].score for key in ours) >= 0.98 * len(ours)

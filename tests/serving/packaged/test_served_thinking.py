"""A chat model whose end of a turn only generation_config.json and its template name, built and served on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import ask, cpu_target

pytest.importorskip("tritonclient")

from llm_pipeline.serving.client import GenerationRequest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
BUILD = """
import sys
from pathlib import Path
import tiny_models
from llm_pipeline.config.target import Target
from llm_pipeline.engines.builder import BuildInputs, engine_builder
directory = Path(sys.argv[1])
checkpoint = tiny_models.make("qwen3-thinking", directory / "checkpoint")
target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
engine_builder("openvino_cpu").build(BuildInputs(checkpoint, target, dtype="bfloat16"), directory / "engine")
"""
TURN = "<|im_start|>user\ntwo old trees<|im_end|>\n<|im_start|>assistant\n<think>"


def test_an_answer_ends_where_the_model_ends_it(tmp_path, package, start, model_python):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/tests/corpus"}
    command = [str(model_python), "-W", "ignore", "-c", BUILD, str(tmp_path)]
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr, timeout=600)
    server = start(package(tmp_path / "engine", cpu_target(4, 4, 64)))
    answer, thinking = ask(
        server, GenerationRequest(f"{TURN}</think>", maximum_tokens=40), GenerationRequest(TURN, maximum_tokens=40)
    )
    assert (answer.text, answer.finish_reason) == (" moon", "stop")
    assert (thinking.output_tokens, thinking.finish_reason) == (40, "length")

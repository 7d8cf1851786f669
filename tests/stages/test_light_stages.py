"""What a stage's process loads before it begins its work, or finds the result in the store."""

from __future__ import annotations

import subprocess
import sys

SLOW = ("aiohttp", "httpx", "huggingface_hub", "numpy", "torch")
"""Each takes a tenth of a second of processor time, or more."""

_PROGRAM = """
import sys
from llm_pipeline.release.flow import release_flow
from llm_pipeline.release.process import run_stage_process
from llm_pipeline.release.execute import load_stage

for step in release_flow():
    if step.is_stage and step.name != "resolve":  # the plan computes a lot with numpy
        load_stage(step.name)
        print(step.name, *(name for name in sys.argv[1:] if name in sys.modules))
"""


def test_a_stage_loads_no_slow_library() -> None:
    found = _output(_PROGRAM, *SLOW).splitlines()
    assert {"load_test", "canary"} <= {line.partition(" ")[0] for line in found}
    assert [line for line in found if " " in line] == []


def test_a_canary_loads_nothing_that_reads_configuration_files() -> None:
    assert _output("import sys, llm_pipeline.stages.canary; print('yaml' in sys.modules)").split() == ["False"]


def _output(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DAGS = Path(__file__).resolve().parents[2] / "dags"
PARSE_IN_A_FORK = """
import os, runpy, sys
import llm_pipeline.demo.airflow_process
from llm_pipeline.release.flow import stage_names
from llm_pipeline.release.registry import load_stage
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
before = set(sys.modules)
runpy.run_path(sys.argv[1])
for name in stage_names():
    load_stage(name)
print(sorted(name for name in set(sys.modules) - before if name.startswith("llm_pipeline")), flush=True)
os._exit(0)
"""


def test_a_fork_of_airflows_process_imports_nothing_of_ours_again(project):
    done = subprocess.run(
        [sys.executable, "-c", PARSE_IN_A_FORK, str(DAGS / "releases.py")],
        env={**os.environ, "AIRFLOW__LLM_PIPELINE__RELEASES": str(project.config.parent)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"

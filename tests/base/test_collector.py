from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest

from llm_pipeline.base.collector import imports_done, sparing

START = """
import gc, json, runpy, sys
import importlib.metadata  # what Python itself brings is not ours
def collections():
    return sum(generation["collections"] for generation in gc.get_stats())
before = collections()
sys.argv = ["llm-pipeline", "--version"]
try:
    runpy.run_module("llm_pipeline", run_name="__main__")
except SystemExit:
    pass
collected = collections() - before
from llm_pipeline.base.collector import imports_done
imports_done()
print(json.dumps([collected, gc.get_threshold(), gc.get_freeze_count()]))
"""


@pytest.fixture(scope="module")
def started() -> list:
    done = subprocess.run([sys.executable, "-c", START], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_what_a_program_imports_is_hardly_looked_through(started):
    assert started[0] < 10


def test_what_a_stage_makes_is_collected_as_usual(started):
    _, threshold, frozen = started
    assert threshold == [700, 10, 10]
    assert frozen > 10_000


def test_a_block_that_is_spared_is_not_ended_by_imports_that_end_in_it():
    usual = gc.get_threshold()
    with sparing():
        imports_done()
        assert gc.get_threshold()[0] == 1_000_000
    assert gc.get_threshold() == usual

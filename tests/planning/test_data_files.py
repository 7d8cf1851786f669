from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.planning.plan import plan_release
from llm_pipeline.planning.release_checks import check_data_files
from llm_pipeline.release.loading import load_release

DRAWN = "output_tokens: { kind: lognormal, median: 8, p95: 18, minimum: 2, maximum: 24 }"
TRACE = (
    "  trace: { file: workloads/burstgpt-example.csv, format: burstgpt }\n"
    "  prompt_tokens: { kind: recorded, maximum: 512 }\n"
    "  output_tokens: { kind: recorded, maximum: 24 }\n"
)


@pytest.fixture
def demo(configs: Path, edit) -> Path:
    """The demo's release, with a trace for its traffic."""
    edit("releases/demo.yaml", f"  {DRAWN}\n", TRACE)
    return configs / "releases/demo.yaml"


def error_of(demo: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_data_files(load_release(demo))
    return caught.value


def test_a_release_may_replay_a_trace(demo: Path):
    check_data_files(load_release(demo))


def test_a_trace_with_a_bad_line_is_told_before_anything_is_spent(demo: Path, configs: Path):
    with (configs / "workloads/burstgpt-example.csv").open("a") as trace:
        trace.write("400,ChatGPT,many,1,2,API log\n")
    with pytest.raises(ConfigError, match=r"burstgpt-example\.csv:42: .*'many'"):
        plan_release(demo, store_seconds=0)


def test_a_line_without_a_prompt_is_told_wherever_it_is(demo: Path, configs: Path):
    with (configs / "workloads/demo.jsonl").open("a") as prompts:
        prompts.write('{"text": "most fish"}\n')
    assert error_of(demo).where.endswith("workloads/demo.jsonl:2501")


def test_a_trace_that_is_not_there_is_told_with_its_line_in_the_release(demo: Path, edit):
    edit("releases/demo.yaml", "burstgpt-example.csv", "none.csv")
    error = error_of(demo)
    assert error.message == "workload.trace.file: workloads/none.csv does not exist below " + str(demo.parents[1])
    line = next(number for number, text in enumerate(demo.read_text().splitlines(), 1) if "none.csv" in text)
    assert error.where == f"{demo}:{line}"


def test_requests_that_are_longer_than_a_target_takes_are_told(demo: Path, edit):
    edit("releases/demo.yaml", "maximum: 512", "maximum: 2000")
    error = error_of(demo)
    assert "longest request may need 2,124 tokens with its answer, and cpu takes 2,048" in error.message
    assert "prompt_tokens" in error.hint

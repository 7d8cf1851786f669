from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.planning.release_checks import check_data_files
from llm_pipeline.release.loading import load_release

DRAWN = "output_tokens: { kind: lognormal, median: 8, p95: 18, minimum: 2, maximum: 24 }"
LONGER = "  prompt_tokens: [16, 512]\n  output_tokens: [2, 24]\n"


@pytest.fixture
def demo(configs: Path, edit) -> Path:
    """The demo's release, with prompts that are made up."""
    edit("releases/demo.yaml", f"  {DRAWN}\n", LONGER)
    return configs / "releases/demo.yaml"


def error_of(demo: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_data_files(load_release(demo))
    return caught.value


def test_a_line_without_a_prompt_is_told_wherever_it_is(demo: Path, configs: Path):
    with (configs / "workloads/demo.jsonl").open("a") as prompts:
        prompts.write('{"text": "most fish"}\n')
    assert error_of(demo).where.endswith("workloads/demo.jsonl:2501")


def test_prompts_that_are_not_there_are_told_with_their_line_in_the_release(demo: Path, edit):
    edit("releases/demo.yaml", "workloads/demo.jsonl", "workloads/none.jsonl")
    error = error_of(demo)
    assert error.message == "workload.prompts: workloads/none.jsonl does not exist below " + str(demo.parents[1])
    line = next(number for number, text in enumerate(demo.read_text().splitlines(), 1) if "none.jsonl" in text)
    assert error.where == f"{demo}:{line}"


def test_requests_that_are_longer_than_a_target_takes_are_told(demo: Path, edit):
    edit("releases/demo.yaml", "[16, 512]", "[16, 2000]")
    error = error_of(demo)
    assert "longest request may need 2,124 tokens with its answer, and cpu takes 2,048" in error.message
    assert "prompt_tokens" in error.hint

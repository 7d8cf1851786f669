"""The limits of MLPerf Inference: milliseconds to the first token, and for each token after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_pipeline.release.loading import load_release

LIMITS = {
    "llama-2-70b-server": (2000, 200),
    "llama-2-70b-interactive": (450, 40),
    "llama-3.1-8b-server": (2000, 100),
    "llama-3.1-8b-interactive": (500, 30),
    "llama-3.1-405b-server": (6000, 175),
    "llama-3.1-405b-interactive": (4500, 80),
    "mixtral-8x7b-server": (2000, 200),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_release_takes_the_limits_of_mlperf_by_name(configs: Path, edit, name: str):
    edit("releases/demo.yaml", "policy: demo", f"policy: mlperf-{name}")
    policy = load_release(configs / "releases" / "demo.yaml").release.policy.load_test
    level = policy.service_level
    assert (level.first_token_milliseconds, level.time_per_output_token_milliseconds) == LIMITS[name]
    assert (policy.attainment, policy.confidence, level.together) == (0.99, 0.99, False)

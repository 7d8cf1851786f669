"""What a release config may say of its evaluation, and the policies that it may name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from llm_pipeline.config.release import Evaluation
from llm_pipeline.release.loading import load_release


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({"repeats": 2}, "greedy answers are all alike"),
        ({"generation": {"num_beams": 2}}, "cannot be asked with num_beams"),
        ({"chat_template_arguments": {"enable_thinking": True}}, "name what ends a thought"),
        ({"scorer_arguments": {"trust_remote_code": True}}, "no code of a checkpoint runs"),
        ({"scorer_arguments": {"pretrained": "else/model"}}, "pretrained would judge another model"),
        ({"scorer_arguments": {"data_parallel_size": 2}}, "set tensor_parallel_size to the number of GPUs"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(stated: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Evaluation.model_validate({"tasks": ["gsm8k"], "served_tasks": ["gsm8k"], **stated})


LIMITS = {  # milliseconds to the first token, and for each token after it
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

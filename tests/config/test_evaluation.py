"""What a release config may say of its evaluation."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from llm_pipeline.config.release import Evaluation


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


def test_answers_may_be_drawn_and_judged_by_their_mean() -> None:
    generation = {"do_sample": True, "temperature": 0.6}
    asked = Evaluation(
        tasks=("gsm8k",), served_tasks=("gsm8k",), generation=generation, repeats=4, think_end="</think>"
    )
    assert asked.samples

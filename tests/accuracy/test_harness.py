from __future__ import annotations

import pytest

from llm_pipeline.accuracy.evaluation import refuse_other_harness
from llm_pipeline.base.errors import IntegrityError

BASELINE = {"lm-eval": "0.4.13", "tokenizer": "aaaa", "questions of gsm8k": "bbbb"}


def test_the_same_harness_compares():
    refuse_other_harness(BASELINE, dict(BASELINE))


def test_what_one_side_has_no_part_in_does_not_matter():
    refuse_other_harness(BASELINE, {"lm-eval": "0.4.13"})


def test_everything_that_differs_is_named_with_both_values():
    other = {"lm-eval": "0.4.12", "tokenizer": "aaaa", "questions of gsm8k": "cccc", "begin token": "added"}
    with pytest.raises(IntegrityError) as refused:
        refuse_other_harness(BASELINE, other)
    assert "lm-eval: 0.4.13 before, 0.4.12 now" in refused.value.message
    assert "questions of gsm8k: bbbb before, cccc now" in refused.value.message
    assert "begin token: unknown before, added now" in refused.value.message
    assert "tokenizer" not in refused.value.message


def test_a_baseline_without_a_known_harness_compares_with_nothing():
    with pytest.raises(IntegrityError, match="not comparable"):
        refuse_other_harness({}, BASELINE)

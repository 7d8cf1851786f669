"""By which metric a task is judged, from what lm-eval says of its answers, and from its file alone."""

from __future__ import annotations

import pytest

from llm_pipeline.accuracy.evaluation import judged_by
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.release import TaskOptions


def sample(reading="none", **values):
    return {"filter": reading, "metrics": list(values), **values}


def chosen(task, *samples, better=None, **options):
    return judged_by(task, samples, better or {}, TaskOptions(**options))


def test_the_metric_is_the_one_that_is_published():
    assert chosen("arc", sample(acc=1.0, acc_norm=0.0)) == ("acc_norm", "none")
    assert chosen("piqa", sample(acc=1, acc_norm=0), metric="acc") == ("acc", "none")
    assert chosen("drop", sample(em=0.0, f1=0.4)) == ("f1", "none")
    assert chosen("truthfulqa_gen", sample(bleu_max=12.5, bleu_acc=1)) == ("bleu_acc", "none")
    gsm8k = [sample(reading, exact_match=1.0) for reading in ("strict-match", "flexible-extract")]
    assert chosen("gsm8k", *gsm8k) == ("exact_match", "flexible-extract")
    assert chosen("gsm8k", *gsm8k, filter="strict-match") == ("exact_match", "strict-match")
    assert chosen("other", *gsm8k) == ("exact_match", "strict-match")


@pytest.mark.parametrize(
    ("values", "better"),
    [
        ({"mcc": (0, 1)}, {}),
        ({"word_perplexity": (-6.0, 2)}, {}),
        ({"loss": 0.5}, {"loss": False}),
        ({"rouge1_max": 37.5}, {}),
        ({"acc": None}, {}),
        ({"acc": float("nan")}, {}),
        ({"acc": "1"}, {}),
    ],
)
def test_what_is_no_share_of_an_item_is_refused_and_never_guessed(values, better):
    with pytest.raises(ConfigError, match=r"is no share from 0 to 1 of a single item") as refused:
        chosen("task", sample(**values), better=better)
    assert "task file of your own" in refused.value.hint


def test_a_metric_that_a_task_lacks_is_named_with_those_that_it_has():
    with pytest.raises(ConfigError, match="task arc: bleu is no share") as refused:
        chosen("arc", sample(acc=1.0, acc_norm=0.0), metric="bleu")
    assert refused.value.hint.endswith("one of: acc, acc_norm")
    with pytest.raises(ConfigError, match="no filter 'loose'"):
        chosen("arc", sample(acc=1.0), filter="loose")

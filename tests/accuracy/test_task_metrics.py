from __future__ import annotations

import math

import pytest

from llm_pipeline.accuracy.task_metrics import Described, choose_filter, choose_metric
from llm_pipeline.base.errors import ConfigError, IntegrityError


def described(values, *, task="a", aggregations=None, higher=None):
    return Described(task, values, aggregations or dict.fromkeys(values, "mean"), higher or {})


@pytest.mark.parametrize(
    ("aggregation", "value", "score", "higher", "bounds"),
    [
        ("mean", True, 1.0, True, (0.0, 1.0)),
        ("perplexity", -2.5, 2.5, False, (0.0, None)),
        ("bits_per_byte", (-8 * math.log(2), 4), 2.0, False, (0.0, None)),
        ("weighted_perplexity", (-6 * math.log(2), 2), 3.0, False, (0.0, None)),
        ("brier_score", (1, [0.25, 0.5, 0.25]), 0.0625 + 0.25 + 0.0625, False, (0.0, 2.0)),
    ],
)
def test_every_kind_of_value_is_one_number_an_item(aggregation, value, score, higher, bounds):
    name = "acc" if aggregation == "mean" else aggregation
    chosen = choose_metric(
        described({name: value}, aggregations={name: aggregation}, higher={name: aggregation == "mean"}), None
    )
    assert chosen.of({name: value}, "here") == pytest.approx(score)
    metric = chosen.metric
    assert (metric.higher_is_better, (metric.minimum, metric.maximum)) == (higher, bounds)


def test_the_likeness_of_a_translation_is_that_of_its_document():
    pytest.importorskip("sacrebleu")
    pair = ("Water is wet.", "Water is wet.")
    chosen = choose_metric(described({"bleu": pair, "chrf": pair}, aggregations={"bleu": "bleu", "chrf": "chrf"}), None)
    assert chosen.metric.metric == "chrf"
    assert chosen.of({"chrf": pair}, "here") == pytest.approx(100.0)
    assert chosen.of({"chrf": ("Water is wet.", ["Sand"])}, "here") < 20.0


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("acc", "acc_norm"), "acc_norm"),
        (("acc",), "acc"),
        (("exact_match", "acc", "acc_norm"), "exact_match"),
        (("perplexity", "acc"), "acc"),
        (("word_perplexity", "bits_per_byte"), "bits_per_byte"),
    ],
)
def test_the_metric_is_the_one_that_is_reported(names, chosen):
    likelihoods = {
        "perplexity": "perplexity",
        "word_perplexity": "weighted_perplexity",
        "bits_per_byte": "bits_per_byte",
    }
    values = {name: (-1.0, 1) if likelihoods.get(name, "perplexity") != "perplexity" else 1.0 for name in names}
    aggregations = {name: likelihoods.get(name, "mean") for name in names}
    assert choose_metric(described(values, aggregations=aggregations), None).metric.metric == chosen


def test_what_is_named_comes_before_the_group_and_the_group_before_the_field():
    values = {"em": 1.0, "f1": 0.5}
    assert choose_metric(described(values, task="drop"), None).metric.metric == "f1"
    assert choose_metric(described(values, task="drop"), None, ["em"]).metric.metric == "em"
    assert choose_metric(described(values, task="drop"), "f1", ["em"]).metric.metric == "f1"
    filters = ["strict-match", "flexible-extract"]
    assert choose_filter("gsm8k", filters, None) == "flexible-extract"
    assert choose_filter("gsm8k", filters, None, ["strict-match"]) == "strict-match"
    assert choose_filter("other", filters, None) == "strict-match"


def test_a_tasks_own_aggregation_counts_where_it_is_the_mean():
    def mean(values):
        return sum(values) / len(values)

    def least(values):
        return min(values)

    def broken(values):
        raise KeyError(values)

    assert choose_metric(described({"own": 1.0}, aggregations={"own": mean}), None).metric.metric == "own"
    for aggregate in (least, broken):
        with pytest.raises(ConfigError, match="own has no score for a single item"):
            choose_metric(described({"own": 1.0}, aggregations={"own": aggregate}), None)


def test_a_score_beyond_a_share_has_no_bounds():
    metric = choose_metric(described({"f1": 100.0}), None).metric
    assert (metric.is_share, metric.minimum, metric.maximum) == (False, None, None)


def test_a_score_that_is_no_number_is_an_error_and_a_missing_one_is_none():
    chosen = choose_metric(described({"acc": 1.0}), None)
    assert chosen.of({"other": 1.0}, "here") is None
    with pytest.raises(IntegrityError, match="acc is nan"):
        chosen.of({"acc": float("nan")}, "here")
    with pytest.raises(IntegrityError, match="its acc has another form"):
        chosen.of({"acc": (1, 2)}, "here")


def test_rounding_beyond_the_bounds_is_taken_off_and_more_is_an_error():
    chosen = choose_metric(described({"acc": 1.0}), None)
    assert chosen.of({"acc": 1.0 + 1e-9}, "here") == 1.0
    with pytest.raises(IntegrityError, match="its acc is 37, outside the range 0 to 1"):
        chosen.of({"acc": 37.0}, "here")

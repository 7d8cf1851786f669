from __future__ import annotations

import json

import pytest

from llm_pipeline.config.quantization import Calibration
from llm_pipeline.errors import ConfigError
from llm_pipeline.quantization.calibration import dataset_file, draw_calibration, read_texts


def encode(texts):
    return [[ord(letter) for letter in text] for text in texts]


TEXTS = [f"text {'x' * (index % 7)} {index}" for index in range(40)]


def drawn(**changes):
    options = {"sources": ["d.jsonl"], "samples": 16, "maximum_tokens": 12, "batch_size": 4, **changes}
    return draw_calibration(TEXTS, Calibration(**options), encode)


def test_the_same_seed_draws_the_same_tokens():
    assert drawn(seed=1) == drawn(seed=1)


@pytest.mark.parametrize("change", [{"seed": 2}, {"maximum_tokens": 11}, {"samples": 15}, {"batch_size": 1}])
def test_the_digest_changes_with_what_the_model_sees(change):
    assert drawn(seed=1).digest != drawn(**{"seed": 1, **change}).digest


def test_a_batch_needs_no_padding_and_no_text_is_too_long():
    for batch in drawn().batches:
        assert len({len(tokens) for tokens in batch}) == 1
        assert len(batch) <= 4
        assert len(batch[0]) <= 12


def test_every_drawn_text_is_seen_once():
    assert drawn().samples == sum(map(len, drawn().batches)) == 16


def test_too_few_texts_are_refused():
    with pytest.raises(ConfigError, match="41 calibration samples wanted, the data set has 40"):
        drawn(samples=41)


@pytest.mark.parametrize("line", ["{}", "no json", '{"text": ""}', '{"text": 3}', "[]"])
def test_a_line_without_text_is_named(tmp_path, line):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"text": "fine"}) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match="text") as error:
        read_texts(path)
    assert error.value.where == f"{path}:2"


def test_a_dataset_is_one_file(tmp_path):
    with pytest.raises(ConfigError, match="0 jsonl files"):
        dataset_file(tmp_path)
    (tmp_path / "a.jsonl").touch()
    assert dataset_file(tmp_path).name == "a.jsonl"

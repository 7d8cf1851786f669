from __future__ import annotations

import pytest

from llm_pipeline.accuracy.dataset_calls import RepositoryName, call_of_task, splits_of_task
from llm_pipeline.base.errors import ConfigError

ADDRESS = "hf://datasets/demo/lines@v1/data/a.jsonl"


def call(**configuration):
    return call_of_task({"dataset_path": "demo/lines"} | configuration)


@pytest.mark.parametrize(
    ("configuration", "read"),
    [
        ({"test_split": "test", "validation_split": "valid", "training_split": "train"}, ("test", "train")),
        ({"test_split": "test", "training_split": "train", "fewshot_split": "dev"}, ("test", "dev")),
        ({"validation_split": "valid", "test_split": None}, ("valid",)),
        ({"test_split": "test[:100]", "training_split": "train", "fewshot_config": {"samples": []}}, ("test",)),
        ({"test_split": "test", "fewshot_config": {"split": "shots"}}, ("test", "shots")),
        ({}, ()),
    ],
)
def test_the_splits_are_the_one_that_is_asked_and_the_one_of_the_examples(configuration, read):
    assert splits_of_task(configuration) == read


def test_how_data_are_read_does_not_make_another_call():
    asked = call(dataset_name="main", dataset_kwargs={"trust_remote_code": True, "revision": "v1", "data_dir": "x"})
    assert asked == call(dataset_name="main", dataset_kwargs={"revision": "v1", "data_dir": "x", "num_proc": 4})
    assert asked != call(dataset_name="other", dataset_kwargs={"revision": "v1", "data_dir": "x"})
    assert asked.repositories == (RepositoryName(name="demo/lines", revision="v1"),)


def test_files_named_by_their_address_are_of_the_data_set_that_holds_them():
    asked = call(dataset_path="json", dataset_kwargs={"data_files": {"test": ADDRESS, "train": [ADDRESS]}})
    assert asked.names_files
    assert asked.repositories == (RepositoryName(name="demo/lines", revision="v1"),)


@pytest.mark.parametrize("place", ["https://example.com/a.jsonl", "/data/a.jsonl", "a.jsonl"])
def test_files_that_are_on_no_hub_are_refused(place):
    asked = call(dataset_path="json", dataset_kwargs={"data_files": place})
    with pytest.raises(ConfigError, match="not a file of a data set on the hub"):
        assert asked.repositories


def test_what_is_no_name_of_a_data_set_is_refused_and_what_brings_its_documents_asks_for_none():
    with pytest.raises(ConfigError, match="not the name of a data set"):
        assert call(dataset_path="../elsewhere").repositories
    assert call(custom_dataset="a function") is None
    assert call(dataset_path=None) is None

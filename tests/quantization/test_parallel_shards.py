"""Several files of an export written at a time: the same bytes, and no error lost."""

from __future__ import annotations

import threading
import time

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import modeling_utils

from llm_pipeline.quantization import parallel_shards
from llm_pipeline.quantization.parallel_shards import shards_written_in_parallel


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=4, vocab_size=24
    )
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_files_are_those_that_transformers_writes_one_by_one(model, tmp_path):
    model.save_pretrained(tmp_path / "one-by-one", max_shard_size="4KB")
    with torch.inference_mode(), shards_written_in_parallel():
        model.save_pretrained(tmp_path / "parallel", max_shard_size="4KB")
    assert contents(tmp_path / "parallel") == contents(tmp_path / "one-by-one")
    assert len(list((tmp_path / "parallel").glob("*.safetensors"))) > parallel_shards._FILES_AT_ONCE


def test_files_are_written_at_the_same_time(model, tmp_path, monkeypatch):
    together = threading.Barrier(parallel_shards._FILES_AT_ONCE, timeout=60)  # breaks unless that many wait at once
    written = []

    def save_file(tensors, file, metadata):
        if len(written) < parallel_shards._FILES_AT_ONCE:
            written.append(file)
            together.wait()

    monkeypatch.setattr(parallel_shards, "save_file", save_file)
    with shards_written_in_parallel():
        model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(written) == parallel_shards._FILES_AT_ONCE


def test_no_more_files_wait_in_memory_than_are_written_at_once(monkeypatch):
    done, taken = threading.Event(), []
    monkeypatch.setattr(parallel_shards, "save_file", lambda *_, **__: done.wait(60))

    def give():
        for number in range(2 * parallel_shards._FILES_AT_ONCE):
            modeling_utils.safe_save_file({}, f"{number}", {})
            taken.append(number)

    with shards_written_in_parallel():
        giver = threading.Thread(target=give)
        giver.start()
        while len(taken) < parallel_shards._FILES_AT_ONCE:
            time.sleep(0.01)
        giver.join(0.2)
        held = len(taken)
        done.set()
        giver.join()
    assert held == parallel_shards._FILES_AT_ONCE


def test_a_file_that_cannot_be_written_is_an_error_and_transformers_is_as_it_was(model, tmp_path, monkeypatch):
    def save_file(tensors, file, metadata):
        if "00003" in file:
            raise OSError(28, "No space left on device", file)

    sequential = modeling_utils.safe_save_file
    monkeypatch.setattr(parallel_shards, "save_file", save_file)
    with pytest.raises(OSError, match="No space left"), shards_written_in_parallel():
        model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert modeling_utils.safe_save_file is sequential

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("openvino_genai")

import tiny_llama
from resolved_release import request_below

from llm_pipeline.artifacts.engine_description import EngineDescription
from llm_pipeline.artifacts.items import write_items
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow

TARGET = {"name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "openvino_cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def request_build(place):
    uri = f"file://{place / 'store'}"
    checkpoint = open_store(uri).publish("checkpoint", tiny_llama.make_checkpoint(place / "checkpoint"))
    (place / "evaluation").mkdir()
    write_items(place / "evaluation", [])
    evaluation = open_store(uri).publish("evaluation", place / "evaluation")

    def make(**changes):
        inputs = {"checkpoint": checkpoint, "evaluation": evaluation}
        config = {"target": {**TARGET, **changes}, "dtype": "float16"}
        return request_below(place, "build", config, subject="cpu", inputs=inputs)

    return make


def test_a_build_publishes_an_engine_with_everything_the_report_needs_and_a_second_one_reuses_it(place, request_build):
    first = execute(request_build())
    assert isinstance(first, StageResult), first
    engine = open_store(f"file://{place / 'store'}").fetch(first.artifacts["engine"])
    facts = EngineDescription.read(engine).facts
    assert first.metrics["engine_bytes"] == facts.bytes > 0
    assert first.metrics["kv_cache"] == "f32"
    assert {"seconds_import", "seconds_trace", "seconds_weights", "seconds_load"} <= set(first.metrics)
    again = execute(request_build())
    assert again.reused
    assert again.artifacts == first.artifacts


@pytest.mark.parametrize("engine", ["openvino_cpu", "tensorrt_llm_llmapi"])
def test_a_checkpoint_that_names_other_weights_is_built_by_no_builder(place, request_build, engine):
    poisoned = shutil.copytree(place / "checkpoint", place / f"poisoned-{engine}")
    config = json.loads((poisoned / "config.json").read_text())
    weights = str(place / "checkpoint/model.safetensors")
    (poisoned / "config.json").write_text(json.dumps({**config, "transformers_weights": weights}))
    checkpoint = open_store(f"file://{place / 'store'}").publish("checkpoint", poisoned)
    request = request_build(engine=engine)
    failure = execute(request.model_copy(update={"inputs": {**request.inputs, "checkpoint": checkpoint}}))
    assert isinstance(failure, StageFailure)
    assert failure.error.type == "IntegrityError"
    assert "'transformers_weights' is" in failure.error.message

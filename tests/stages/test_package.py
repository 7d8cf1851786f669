from __future__ import annotations

import json

import pytest

pytest.importorskip("tritonclient")

from llm_pipeline.accuracy.items import ScoredItem, write_items
from llm_pipeline.serving.golden import read_golden
from llm_pipeline.serving.repository_layout import OPENVINO_FILES
from llm_pipeline.serving.repository_lint import lint_repository
from llm_pipeline.stages.contract import StageFailure, StageRequest, StageResult
from llm_pipeline.stages.execute import execute
from llm_pipeline.store import open_store

TARGET = {
    "name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "openvino_cpu",
    "limits": {"maximum_sequences": 8},
}  # fmt: skip


def make_engine(directory):
    from llm_pipeline.config.target import Target
    from llm_pipeline.engines.builder import EngineDescription, EngineFacts

    directory.mkdir()
    for name in OPENVINO_FILES:
        (directory / name).write_bytes(b"x")
    facts = EngineFacts(
        builder="openvino_cpu", bytes=1, weight_format="native", quantization="FP8",
        kv_cache="f32", context_length=128, device="a CPU", versions={}, seconds={},
        single_stream_tokens_per_second=1.0, batched_tokens_per_second=1.0, batched_sequences=1,
    )  # fmt: skip
    target = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    EngineDescription(facts=facts, target=target).write(directory)
    return directory


@pytest.fixture
def package(tmp_path):
    uri = f"file://{tmp_path / 'store'}"
    store = open_store(uri)
    engine = store.publish("engine", make_engine(tmp_path / "engine"))

    def run(*, generative=True, release="r1"):
        evaluation = tmp_path / f"evaluation-{generative}"
        evaluation.mkdir(exist_ok=True)
        write_items(
            evaluation,
            [
                ScoredItem(
                    task="t",
                    item_id=number,
                    fingerprint=str(number),
                    score=1.0,
                    generative=generative,
                    prompt=f"{number}+1=",
                    completion=f" {number + 1}",
                )
                for number in range(80)
            ],
        )
        request = StageRequest(
            release_id=release, stage="package", subject="cpu",
            config={"target": TARGET, "golden_prompts": 20, "maximum_tokens": 6},
            inputs={"engine": engine, "evaluation": store.publish("evaluation", evaluation)},
            store=uri, work_root=str(tmp_path / "work"),
        )  # fmt: skip
        return store, execute(request)

    return run


def test_packaging_publishes_a_sound_repository_with_golden_prompts_and_facts(package):
    store, result = package()
    assert isinstance(result, StageResult), result
    assert result.artifacts["repository"].kind == "model_repository"
    repository = store.fetch(result.artifacts["repository"])
    assert lint_repository(repository) == []
    golden = read_golden(repository)
    assert len(golden) == 20 == result.metrics["golden_prompts"]
    assert (golden[0].prompt, golden[0].completion, golden[0].maximum_tokens) == ("0+1=", " 1", 6)
    facts = json.loads((repository / "release.json").read_text())
    assert facts["weight_format"] == "native"
    assert len(facts["engine_digest"]) == 64
    assert result.metrics["repository_bytes"] > 0


def test_another_release_with_the_same_inputs_gets_the_same_repository(package):
    _, first = package()
    _, second = package(release="r2")
    assert second.reused
    assert second.artifacts == first.artifacts


def test_an_evaluation_without_generations_cannot_be_packaged(package):
    _, failure = package(generative=False)
    assert isinstance(failure, StageFailure)
    assert "no generative item" in failure.error.message

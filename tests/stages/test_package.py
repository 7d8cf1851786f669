from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("tritonclient")

from pretended_engine import engine_facts, make_engine
from resolved_release import request_below

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden, write_golden
from llm_pipeline.artifacts.items import ScoredItem, write_items
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.release.contract import StageFailure, StageResult
from llm_pipeline.release.execute import execute
from llm_pipeline.stages import package as packaging
from llm_pipeline.store import open_store

TARGET = {
    "name": "cpu", "accelerator": "cpu", "accelerator_count": 0, "engine": "openvino_cpu",
    "limits": {"maximum_sequences": 8},
}  # fmt: skip

GPU_TARGET = {"name": "h100", "accelerator": "H100-SXM5-80GB", "engine": "tensorrt_llm_llmapi"}


@pytest.fixture
def gpu_build(tmp_path):
    from llm_pipeline.artifacts.engine_description import EngineDescription, GpuFacts, HostFacts

    directory = tmp_path / "gpu_engine"
    directory.mkdir()
    (directory / "llm_args.yaml").write_text("backend: pytorch\n")
    facts = engine_facts(quantization="FP8", kv_cache="fp8", context_length=512, versions={"tensorrt_llm": "1.2.1"})
    host = HostFacts(
        gpus=(GpuFacts(name="NVIDIA H100", sm="sm90", memory_bytes=2**36),), driver="590.44.01",
        container="nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3",
    )  # fmt: skip
    checkpoint = ArtifactRef(kind="checkpoint", digest="c" * 64)
    target = Target(**GPU_TARGET)
    EngineDescription(facts=facts, target=target, host=host, checkpoint=checkpoint).write(directory)
    return directory


@pytest.fixture
def package(tmp_path):
    uri = f"file://{tmp_path / 'store'}"
    store = open_store(uri)

    def run(*, generative=True, release="r1", built=None, engine=None, plain=None):
        engine = store.publish("engine", built or engine or make_engine(tmp_path / f"engine {release}"))
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
        request = request_below(
            tmp_path, "package", release_id=release, subject="cpu",
            config={"target": GPU_TARGET if built else TARGET, "golden_prompts": 20, "maximum_tokens": 6,
                    "model": "organisation/name", "chat_template_arguments": {"thinking": False}},
            inputs={"engine": engine, "evaluation": store.publish("evaluation", evaluation)}
            | ({"plain_engine": store.publish("engine", plain)} if plain else {}),
        )  # fmt: skip
        return store, execute(request)

    return run


def test_packaging_publishes_a_sound_repository_with_golden_prompts_and_facts(package):
    store, result = package()
    assert isinstance(result, StageResult), result
    assert result.artifacts["repository"].kind == "model_repository"
    repository = store.fetch(result.artifacts["repository"])
    golden = read_golden(repository)
    assert len(golden) == 20 == result.metrics["golden_prompts"]
    assert (golden[0].prompt, golden[0].completion, golden[0].maximum_tokens) == ("0+1=", " 1", 6)
    facts = json.loads((repository / "release.json").read_text())
    assert facts["weight_format"] == "native"
    endpoint = json.loads((repository / "llm/1/endpoint.json").read_text())
    assert (endpoint["model"], endpoint["chat_template_arguments"]) == ("organisation/name", {"thinking": False})
    assert len(facts["engine_digest"]) == 64
    assert result.metrics["repository_bytes"] > 0


def test_answers_that_the_build_recorded_are_the_golden_ones(package, tmp_path):
    own = GoldenPrompt(prompt="0+1=", completion=" one", maximum_tokens=6)
    engine = make_engine(tmp_path / "built")
    write_golden(engine, [own])
    store, result = package(engine=engine)
    assert read_golden(store.fetch(result.artifacts["repository"])) == [own]


def test_the_golden_answers_of_an_engine_that_speculates_are_those_of_the_engine_that_does_not(package, tmp_path):
    speculating, plain = (make_engine(tmp_path / name) for name in ("speculating", "plain"))
    wanted = GoldenPrompt(prompt="0+1=", completion=" one", maximum_tokens=6)
    write_golden(speculating, [GoldenPrompt(prompt="0+1=", completion=" two", maximum_tokens=6)])
    write_golden(plain, [wanted])
    store, result = package(engine=speculating, plain=plain)
    assert read_golden(store.fetch(result.artifacts["repository"])) == [wanted]


@pytest.mark.parametrize(
    ("own", "subject", "chosen", "compared"),
    [
        ({}, "h100:fp8:ngram", "", "engine of build h100:fp8"),
        ({}, "h100", "ngram", "engine of build h100:fp8"),
        ({}, "h100:fp8", "", None),
        ({}, "h100", "", None),
        ({"speculative_config": {"method": "eagle"}}, "h100:fp8:ngram", "", None),
    ],
    ids=["a trial", "what was chosen", "a trial without", "chosen without", "the target itself speculates"],
)
def test_packaging_asks_for_the_engine_without_speculation_where_a_variant_alone_speculates(
    own, subject, chosen, compared
):
    variants = {"ngram": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}}
    target = Target(**GPU_TARGET | {"engine": "vllm"}, runtime={"engine_args": own}, variants=variants)

    def of_subject(name):
        return target.varied(name.partition("fp8:")[2] if ":" in name else chosen)

    flow = SimpleNamespace(
        target=of_subject,
        chosen_recipe=lambda _: "fp8",
        artifact=lambda stage, of, name: f"{name} of {stage} {of}",
        record=SimpleNamespace(model=SimpleNamespace(id="organisation/name")),
        release=SimpleNamespace(evaluation=SimpleNamespace(chat_template_arguments={})),
    )
    _, inputs = packaging.request(flow, subject)
    assert inputs["engine"] == f"engine of build {subject}"
    assert inputs.get("plain_engine") == compared


def test_an_evaluation_without_generations_cannot_be_packaged(package):
    _, failure = package(generative=False)
    assert isinstance(failure, StageFailure)
    assert "no generative item" in failure.error.message


def test_an_engine_of_the_llm_api_is_packaged_with_the_arguments_and_the_link_of_its_build(package, gpu_build):
    store, result = package(built=gpu_build)
    assert isinstance(result, StageResult), result
    repository = store.fetch(result.artifacts["repository"])
    links = json.loads((repository / "links.json").read_text())
    assert links == {"llm/1/checkpoint": {"kind": "checkpoint", "digest": "c" * 64}}
    facts = json.loads((repository / "release.json").read_text())
    assert (facts["compute_capability"], facts["runtime_version"]) == ("sm90", "1.2.1")
    assert facts["built_in"] == "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"

from __future__ import annotations

import json

import pytest

pytest.importorskip("tritonclient")

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.serving.model_repository import write_repository

GOLDEN = [GoldenPrompt(prompt="2+2=", completion=" 4", maximum_tokens=4)]
FACTS = {"weight_format": "native", "quantization": None}
TARGET = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
ENGINE = ArtifactRef(kind="engine", digest="e" * 64)


def write(engine, destination, facts=FACTS):
    return write_repository(engine, GOLDEN, facts, TARGET, destination, engine_ref=ENGINE)


@pytest.fixture
def repository(pretended_engine, tmp_path):
    destination = tmp_path / "repository"
    write(pretended_engine, destination)
    return destination


def read_config(repository):
    return text_format.Parse((repository / "llm/config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_the_repository_has_the_layout_that_servers_and_probes_expect(repository, pretended_engine):
    files = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    engine = {f"llm/1/engine/{path.name}" for path in pretended_engine.iterdir()}
    code = {"llm/1/model.py", "llm/1/llm_model_base.py", "llm/1/served_model.py", "llm/1/endpoint.json"}
    assert files == {"golden.jsonl", "release.json", "llm/config.pbtxt", *code, *engine}
    assert read_golden(repository) == GOLDEN
    assert json.loads((repository / "release.json").read_text()) == FACTS


def test_the_configuration_parses_as_the_servers_own_message(repository):
    config = read_config(repository)
    assert (config.name, config.backend, config.max_batch_size) == ("llm", "python", 0)
    assert config.model_transaction_policy.decoupled
    assert all(tensor.optional for tensor in config.input), "a prompt is a text or tokens"


def test_a_request_may_never_be_longer_than_the_models_context(repository):
    assert read_config(repository).parameters["maximum_tokens_per_request"].string_value == "128"


def test_what_a_store_keeps_beside_the_engine_does_not_get_in(pretended_engine, tmp_path):
    (pretended_engine / "_MANIFEST.json").write_text("{}")
    write(pretended_engine, tmp_path / "repository")
    assert not (tmp_path / "repository/llm/1/engine/_MANIFEST.json").exists()


def test_equal_inputs_give_an_equal_repository(repository, pretended_engine, tmp_path):
    write(pretended_engine, tmp_path / "again", dict(reversed(FACTS.items())))
    for path in repository.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(repository)).read_bytes()


@pytest.mark.parametrize(
    "hostile",
    [
        '" } } instance_group [ { kind: KIND_GPU } ] #',
        "a\n}\nbackend: 'other'",
        "\\",
        "${leftover}",
        "\x00\u2028é😀",
        "{{x}}",
    ],
)
def test_a_hostile_fact_cannot_change_the_configuration(hostile, pretended_engine, tmp_path):
    destination = tmp_path / "repository"
    write(pretended_engine, destination, {"name": hostile, hostile: "x"})
    config = read_config(destination)
    assert config.parameters["fact_name"].string_value == hostile
    assert config.backend == "python"
    assert len(config.instance_group) == 1


def test_something_that_is_not_an_engine_is_refused(tmp_path):
    (tmp_path / "engine").mkdir()
    with pytest.raises(IntegrityError, match="not an engine"):
        write(tmp_path / "engine", tmp_path / "repository")

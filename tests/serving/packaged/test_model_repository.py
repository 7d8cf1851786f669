from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("tritonclient")

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from llm_pipeline.artifacts.golden import GoldenPrompt, read_golden
from llm_pipeline.base.errors import IntegrityError
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.target import Target
from llm_pipeline.serving.model_repository import lint_repository, write_repository

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


def change(repository, old, new):
    path = repository / "llm/config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_repository_has_the_layout_that_servers_and_probes_expect(repository, pretended_engine):
    files = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    engine = {f"llm/1/engine/{path.name}" for path in pretended_engine.iterdir()}
    code = {"llm/1/model.py", "llm/1/llm_model_base.py", "llm/1/served_model.py"}
    assert files == {"golden.jsonl", "release.json", "llm/config.pbtxt", *code, *engine}
    assert read_golden(repository) == GOLDEN
    assert json.loads((repository / "release.json").read_text()) == FACTS


def test_the_configuration_parses_as_the_servers_own_message_and_lints(repository):
    config = read_config(repository)
    assert (config.name, config.backend, config.max_batch_size) == ("llm", "python", 0)
    assert config.model_transaction_policy.decoupled
    assert [tensor.name for tensor in config.input if not tensor.optional] == ["text_input"]
    assert lint_repository(repository) == []


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


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('backend: "python"', "", "backend is ''; model.py needs python"),
        ("decoupled: true", "", "not decoupled"),
        ('name: "llm"', 'name: "other"', "named 'other'"),
        ('name: "max_tokens"', 'name: "maximum"', "input max_tokens is missing"),
        ('name: "max_tokens"', 'name: "stream"', "input stream is declared twice"),
        ("TYPE_INT32", "TYPE_INT64", "max_tokens is not TYPE_INT32"),
        ("optional: true", "", "must be optional"),
        ("KIND_CPU", "KIND_GPU", "KIND_CPU"),
        ('string_value: "128"', 'string_value: "${limit}"', "${limit} was never filled in"),
        ('name: "llm"', "name: ${name}", "${name} was never filled in"),
        ('name: "llm"', "name: ", "version_policy needs quotes"),
    ],
)
def test_a_broken_configuration_is_told_by_the_lint(old, new, problem, repository):
    change(repository, old, new)
    assert any(problem in told for told in lint_repository(repository)), lint_repository(repository)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("llm/config.pbtxt", "config.pbtxt is missing"),
        ("llm/1/model.py", "1/model.py missing_file"),
        ("llm/1/llm_model_base.py", "1/llm_model_base.py is missing"),
        ("llm/1/served_model.py", "1/served_model.py is missing"),
        ("llm/1/engine/engine.json", "engine/engine.json is missing"),
        ("llm/1", "no version directory"),
        ("llm/1/engine/openvino_model.bin", "engine/openvino_model.bin is missing or empty"),
    ],
)
def test_a_missing_file_is_told_by_the_lint(path, problem, repository):
    place = repository / path
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    assert any(problem in told for told in lint_repository(repository))


def test_code_that_cannot_run_and_a_link_are_told_by_the_lint(repository):
    (repository / "llm/1/model.py").write_text("def broken(:\n")
    (repository / "llm/1/engine/link").symlink_to("/etc/hostname")
    told = "\n".join(lint_repository(repository))
    assert "llm/1/model.py:1 code_syntax" in told
    assert "llm/1/engine/link symbolic_link" in told


def test_something_that_is_not_an_engine_is_refused(tmp_path):
    (tmp_path / "engine").mkdir()
    with pytest.raises(IntegrityError, match="not an engine"):
        write(tmp_path / "engine", tmp_path / "repository")


def test_an_engine_that_lacks_a_file_is_refused(pretended_engine, tmp_path):
    (pretended_engine / "openvino_tokenizer.xml").unlink()
    with pytest.raises(IntegrityError, match=r"openvino_tokenizer\.xml"):
        write(pretended_engine, tmp_path / "repository")

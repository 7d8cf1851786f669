"""A model's versions in the repository of a running server: the same contract for a directory and a bucket.

That the real server loads what lies in a bucket so was seen once by hand; it takes too long here.
"""

from pathlib import Path

import pytest

from llm_pipeline.adapters.existing_triton.model_directory import ModelDirectory, open_model_directory
from llm_pipeline.base.errors import ConfigError


@pytest.fixture(params=["copies", "links", "bucket"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> ModelDirectory:
    if request.param == "bucket":
        pytest.importorskip("moto")
        server = request.getfixturevalue("s3")
        uri, endpoint = f"s3://{server.bucket()}/some/models", server.endpoint
        return open_model_directory(uri, "llm", link=False, s3_endpoint=endpoint)
    (tmp_path / "models").mkdir()
    return open_model_directory(str(tmp_path / "models"), "llm", link=request.param == "links")


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A version's files; bytecode beside them is not part of it."""
    path = tmp_path / "repository" / "llm" / "1"
    (path / "engine").mkdir(parents=True)
    (path / "model.py").write_text("the model")
    (path / "engine" / "engine.json").write_text("{}")
    return path


def test_a_version_is_there_whole_with_what_it_links_to_until_it_is_removed(directory, version, tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_text("w")
    assert directory.versions() == ()
    directory.add(3, version, {})
    directory.add(12, version, {"checkpoint": weights})
    assert directory.versions() == (3, 12)
    directory.remove(12)
    assert directory.versions() == (3,)
    directory.remove(12)
    directory.remove(3)
    assert directory.versions() == ()
    assert (weights / "model.safetensors").read_text() == "w", "what is linked to stays"
    assert (version / "model.py").exists()


@pytest.mark.parametrize("link", [True, False])
def test_a_version_in_a_directory_reads_as_its_source_does(version, tmp_path, link):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_text("w")
    models = tmp_path / "models"
    models.mkdir()
    directory = open_model_directory(str(models), "llm", link=link)
    directory.add(2, version, {"checkpoint": weights})
    files = {str(path.relative_to(models)): path.read_text() for path in models.glob("llm/2/*/*")}
    assert files == {"llm/2/engine/engine.json": "{}", "llm/2/checkpoint/model.safetensors": "w"}
    assert (models / "llm" / "2" / "model.py").is_symlink() == link
    directory.remove(2)
    assert list(models.iterdir()) == [], "the model was ours alone"


def test_a_version_in_a_bucket_lies_where_the_server_looks(version, s3):
    pytest.importorskip("moto")
    bucket = s3.bucket()
    open_model_directory(f"s3://{bucket}/models", "llm", link=False, s3_endpoint=s3.endpoint).add(2, version, {})
    keys = [entry["Key"] for entry in s3.client().list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["models/llm/2/engine/engine.json", "models/llm/2/model.py"]


def test_a_repository_that_is_not_here_is_refused_and_not_made(version, tmp_path):
    directory = open_model_directory(str(tmp_path / "nowhere"), "llm", link=False)
    with pytest.raises(ConfigError, match="no such repository here"):
        directory.add(1, version, {})
    assert not (tmp_path / "nowhere").exists()

"""The JSON schemas for editors: they take every committed file, and refuse what loading refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from llm_pipeline.base.yaml_document import parse_yaml
from llm_pipeline.config.reference import json_schemas, reference

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = [path for folder in json_schemas() for path in sorted((CONFIGS / folder).glob("*.yaml"))]


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    return json_schemas()


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_committed_file_is_valid(schemas, path):
    document = parse_yaml(path.read_bytes(), where=str(path)).value
    jsonschema.Draft202012Validator(schemas[path.parent.name]).validate(document)


def test_every_schema_is_one(schemas):
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_a_key_says_what_the_reference_says_of_it(schemas):
    target = schemas["targets"]["properties"]["accelerator"]
    assert target["description"] in (CONFIGS / "REFERENCE.md").read_text()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"recipe": ["fp8"]}, []),
        ({"targets": []}, ["targets"]),
        ({"baseline": {"dtype": "int3"}}, ["baseline", "dtype"]),
    ],
    ids=["unknown key", "empty list", "unknown word"],
)
def test_a_mistake_is_shown_where_it_is(schemas, change, where):
    document = yaml.safe_load((CONFIGS / "releases" / "demo.yaml").read_text()) | change
    (error,) = jsonschema.Draft202012Validator(schemas["releases"]).iter_errors(document)
    assert list(error.absolute_path) == where


_FILE = Path(__file__).parents[2] / "configs" / "REFERENCE.md"


def test_the_committed_reference_is_what_the_models_say() -> None:
    assert _FILE.read_text() == reference(), "run: llm-pipeline schema --text > configs/REFERENCE.md"

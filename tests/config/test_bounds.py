"""Every number of every configuration model has a range, every text and collection a largest length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import create_model

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.policy import Policy
from llm_pipeline.config.quantization import QuantizationRecipe
from llm_pipeline.config.release import ReleaseConfig, ResolvedRelease
from llm_pipeline.config.target import Target
from llm_pipeline.release.loading import load_release

FILES = (Deployment, Policy, QuantizationRecipe, ReleaseConfig, ResolvedRelease, ServingManifestOptions, Target)
MODELS = create_model("AllFiles", **{model.__name__: (model, ...) for model in FILES}).model_json_schema()["$defs"]


def unbounded_fields(schema: dict[str, Any]) -> list[str]:
    return [f"{name}: {lack}" for name, part in schema.get("properties", {}).items() for lack in unbounded(part)]


def unbounded(schema: dict[str, Any]) -> Iterator[str]:
    """What a JSON schema leaves without a bound; models that it refers to are looked at by themselves."""
    if "enum" in schema or "const" in schema:
        return
    if "properties" in schema:
        for part in schema["properties"].values():
            yield from unbounded(part)
        return
    kind = schema.get("type")
    if kind in ("number", "integer"):
        if not schema.keys() & {"minimum", "exclusiveMinimum"} or not schema.keys() & {"maximum", "exclusiveMaximum"}:
            yield "a number without a range"
    elif kind in _LARGEST and _LARGEST[kind] not in schema:
        yield f"{kind} without {_LARGEST[kind]}"
    if kind == "object" and "propertyNames" not in schema:
        yield "keys without a bound"
    inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ()), schema.get("items"), schema.get("propertyNames")]
    for part in (*inner, schema.get("additionalProperties")):
        if isinstance(part, dict):
            yield from unbounded({"type": "string", **part} if part is schema.get("propertyNames") else part)


_LARGEST = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}


@pytest.mark.parametrize("model", MODELS)
def test_every_field_has_bounds(model: str):
    assert unbounded_fields(MODELS[model]) == []


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("releases/demo", ("timeout_hours: 1", "timeout_hours: 1e300"), "approval.timeout_hours: must be 0.0001 to 8"),
        ("policies/demo", ("alpha: 0.05", "alpha: 'nan'"), "canary.alpha: must be 1e-09 to less than 0.5"),
        ("policies/demo", ("look_seconds: 1", "look_seconds: inf"), "canary.look_seconds: must be 0.001 to 2,5"),
        ("deployments/local", ("http: 18400", "http: 184000"), "places.cpu.staging.http: must be 1,024 to 65,535"),
        ("releases/demo", ("description: ", f"description: {'x' * 3000}"), "description: String should have at most"),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_told_with_its_key_and_range(
    configs: Path, edit, name: str, change: tuple[str, str], told: str
):
    line = edit(f"{name}.yaml", *change)
    with pytest.raises(ConfigError) as caught:
        load_release(configs / "releases" / "demo.yaml")
    assert f"{configs / name}.yaml:{line}: {told}" in str(caught.value)

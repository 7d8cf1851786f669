"""What can be said of images and the compose file without an engine to build and start them."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from llm_pipeline_airflow.provider import get_provider_info

DOCKER = Path(__file__).parents[2] / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile.*"))
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONCE = ("migrate",)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_an_image_is_pinned_and_does_not_run_as_root(path: Path):
    lines = path.read_text().splitlines()
    stages = {words[3] for words in map(str.split, lines) if words[:1] == ["FROM"] and len(words) > 3}
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", path.read_text(), re.MULTILINE))
    for line in lines:
        if line.startswith("FROM ") and line.split()[1] not in stages:
            image = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], line.split()[1])
            assert re.search(r":[\w.-]*\d", image), f"{image} is not pinned"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1].isdecimal()
    assert users[-1] != "0"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_an_image_copies_only_what_is_there(path: Path):
    for line in path.read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = [word for word in line.split()[1:] if not word.startswith("--")]
            assert [source for source in sources if not (DOCKER.parent / source).exists()] == []


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.suffix)
def test_an_image_that_installs_the_package_has_all_that_its_wheel_is_made_of(path: Path):
    wheel = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {Path(path) for path in (*wheel["force-include"], *wheel["packages"])}
    before, *after = re.split(r"--no-build-isolation \.|-m hatchling build", path.read_text())
    copied = {word for line in before.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert not after or not [path for path in needed if not copied & {str(path), *map(str, path.parents)}]
    assert bool(after) == (path.suffix not in (".worker", ".verify"))


def test_the_control_image_is_airflows_own_and_leaves_its_entry_point_and_user_alone():
    lines = (DOCKER / "Dockerfile.control").read_text().splitlines()
    words = {line.split()[0] for line in lines if line and not line.startswith(("#", " "))}
    assert "ARG AIRFLOW_IMAGE=apache/airflow:3.3.2-python3.11" in lines
    assert lines[-1] == "USER 50000"
    assert not words & {"ENTRYPOINT", "CMD"}


def test_the_control_image_installs_no_test_tools_and_what_its_workers_need():
    (extras,) = re.findall(r"\*\.whl\)\[([\w,-]+)\]", (DOCKER / "Dockerfile.control").read_text())
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"]) - {"development", "model", "tensorrt-llm"}
    assert {"control", "kubernetes", "store-s3", "signing"} <= set(extras.split(","))


def test_the_charts_values_name_our_bundle_and_set_no_command():
    values = yaml.safe_load((DOCKER / "airflow-values.yaml").read_text())
    (bundle,) = values["dagProcessor"]["dagBundleConfigList"]
    module, _, name = bundle["classpath"].rpartition(".")
    assert hasattr(importlib.import_module(module), name)
    assert set(values["config"]["llm_pipeline"]) <= set(get_provider_info()["config"]["llm_pipeline"]["options"])
    assert values["airflowVersion"] in (DOCKER / "Dockerfile.control").read_text()
    components = [section for section in values.values() if isinstance(section, dict)]
    assert not any(set(section) & {"args", "command"} for section in components)
    mounted = {mount["name"] for mount in values["volumeMounts"]}
    assert mounted == {volume["name"] for volume in values["volumes"]}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_without_root_and_watched(name: str):
    service = SERVICES[name]
    assert re.search(r":\d+\.\d+", service["image"])
    assert not service["user"].startswith("0")
    assert not service.get("privileged")
    assert ("healthcheck" in service) == (name not in ONCE)


def test_every_secret_comes_from_the_environment_and_is_in_the_example():
    text = (DOCKER / "compose.yaml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", text))
    example = dict(re.findall(r"^(\w+)=(.*)$", (DOCKER / "compose.env.example").read_text(), re.MULTILINE))
    assert asked == set(example)
    assert [name for name, value in example.items() if value] == ["LLM_PIPELINE_QUEUES", "LLM_PIPELINE_ROOT"]
    assert "docker/compose.env" in (DOCKER.parent / ".gitignore").read_text().splitlines()


def test_images_of_our_own_have_a_dockerfile():
    ours = {service["image"] for service in SERVICES.values() if service["image"].startswith("llm-pipeline-")}
    assert {image.removeprefix("llm-pipeline-").partition(":")[0] for image in ours} == {"control", "worker"}
    assert {path.suffix for path in DOCKERFILES} == {".control", ".model", ".serving", ".verify", ".worker"}

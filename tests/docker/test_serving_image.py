"""The serving image's own build steps, run in the layout of NVIDIA's image since 26.03, and what runs in it.

TensorRT-LLM, a double here, is in a virtual environment of its own, made from a system's interpreter that does not see
it; that environment lacks what signing, S3 and Triton's client need. There is no Docker: the `RUN` lines of the
Dockerfile are run by bash.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.store import Signing, StoreModel, store_settings
from llm_pipeline.store import open_store

TESTS = Path(__file__).parents[1]

from pretended_engine import linked_repository
from signing_keys import signing_with_new_keys

ROOT = TESTS.parent
DOUBLES = TESTS / "doubles"
BROUGHT = ("numpy==1.26.4", "protobuf==6.33.5", "pydantic", "psutil", "PyYAML", "jsonschema", "setuptools")
"""What stands in for the packages that NVIDIA's environment has besides TensorRT-LLM."""

pytestmark = pytest.mark.thorough


def run(command: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(directory), "PATH": os.environ["PATH"], **variables}
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=directory, env={**kept, **environment}, capture_output=True,
        text=True, check=False, timeout=1800,
    )  # fmt: skip


def instructions(name: str) -> list[str]:
    """What follows an instruction's name in the Dockerfile, each on one line."""
    joined = (ROOT / "docker" / "Dockerfile.serving").read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.+)$", joined, re.MULTILINE)


def copies_of_the_dockerfile() -> list[tuple[list[str], str]]:
    """What each COPY copies, and to where."""
    return [(words[:-1], words[-1]) for words in map(str.split, instructions("COPY"))]


def steps_of_the_dockerfile() -> list[str]:
    """Its RUN instructions that concern Python."""
    return [step for step in instructions("RUN") if "python3" in step]


class Image:
    """What the image's file system would hold.

    Attributes:
        path: PATH of its processes.
    """

    def __init__(self, root: Path) -> None:
        self.work, self.opt, self.system = root / "llm-pipeline", root / "opt", root / "usr"
        self.path = f"{self.work}/python/bin:{self.system}/bin:{os.environ['PATH']}"

    def build(self) -> None:
        self._make_nvidias()
        self.work.mkdir()
        for names, there in copies_of_the_dockerfile():
            for name in names:
                self._copy(ROOT / name, there)
        for step in steps_of_the_dockerfile():
            here = step.replace("/opt/llm-pipeline", str(self.work))
            here = re.sub(r"(serving_python\.py \S+)", rf"\1 --environments {self.opt}", here)
            done = self.run(here)
            assert done.returncode == 0, f"{here}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"

    def _copy(self, source: Path, there: str) -> None:
        """As COPY does: a directory's content, or a file into a directory that ends in a slash."""
        to = self.work / there
        if source.is_dir():
            shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
            return
        if there.endswith("/"):
            to.mkdir(exist_ok=True)
        shutil.copy(source, to)

    def _make_nvidias(self) -> None:
        nvidias = self.opt / "venv-tritonserver"
        made = run(
            f"{sys.executable} -m venv {self.system} && {self.system}/bin/python3 -m venv {nvidias}"
            f" && {nvidias}/bin/python3 -m pip install --quiet {' '.join(BROUGHT)}",
            self.opt.parent,
        )
        assert made.returncode == 0, made.stderr
        (packages,) = nvidias.glob("lib/python3*/site-packages")
        (packages / "tensorrt_llm").symlink_to(DOUBLES / "tensorrt_llm_package" / "tensorrt_llm")

    def run(self, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(command, self.work, **{"PATH": self.path, **variables})


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    found = Image(tmp_path_factory.mktemp("image"))
    found.build()
    return found


def test_the_layout_is_nvidias_and_the_images_python_sees_both(image):
    missing = f"{image.system}/bin/python3 -c 'import tensorrt_llm'"
    assert "No module named 'tensorrt_llm'" in image.run(missing).stderr
    nested = f"{image.opt}/venv-tritonserver/bin/python3 -m venv --system-site-packages nested && nested/bin/python3"
    assert "No module named 'tensorrt_llm'" in image.run(f"{nested} -c 'import tensorrt_llm'").stderr
    every = "tensorrt_llm, llm_pipeline, model_signing, boto3, tritonclient.grpc.model_config_pb2, aiohttp, scipy"
    assert image.run(f"python3 -c 'import {every}'").returncode == 0
    present = dict(line.split("==") for line in (image.work / "present.txt").read_text().split() if "==" in line)
    now = dict(line.split("==") for line in image.run("python3 -m pip freeze --all").stdout.split() if "==" in line)
    assert present.items() <= now.items(), "what NVIDIA's environment had is as it was"
    assert "model-signing" not in {name.lower().replace("_", "-") for name in present}
    assert image.run("python3 -m pip check").stdout.strip() == "No broken requirements found."


@pytest.fixture
def signed(tmp_path: Path) -> tuple[StoreModel, ArtifactRef]:
    """A store that signs, with a repository that links to a checkpoint."""
    signing: Signing = signing_with_new_keys(tmp_path / "keys")
    config = store_settings(uri=f"file://{tmp_path / 'store'}", signing=signing)
    return config, linked_repository(open_store(config), tmp_path)


def test_a_pod_lays_out_what_it_verifies_by_its_signature(image, signed, tmp_path):
    config, repository = signed
    verifying = {"uri": config.uri, "signing": {"public_keys": [str(tmp_path / "keys" / "release.pub")]}}
    lay_out = (
        f"python3 -m llm_pipeline pod lay-out {repository.kind}/{repository.digest} --view {tmp_path / 'view'}"
        f" --store '{json.dumps(verifying)}'"
    )
    done = image.run(lay_out)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "view/llm/1/checkpoint/model.safetensors").read_text() == "weights"
    other = signing_with_new_keys(tmp_path / "others").public_keys[0]
    refused = image.run(lay_out.replace(str(tmp_path / "keys" / "release.pub"), str(other)))
    assert refused.returncode != 0
    assert "model_signing is not installed" not in refused.stderr
    assert "_SIGNATURE.json" in refused.stderr

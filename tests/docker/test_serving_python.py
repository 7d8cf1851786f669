"""The serving image's `python3`: that of NVIDIA's environment, which its system's interpreter does not see."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
SCRIPT = DOCKER / "serving_python.py"


def environment(directory: Path, *, has_tensorrt_llm: bool, packages: Path | None = None) -> Path:
    """A bare virtual environment, with a stand-in for TensorRT-LLM that must not be imported."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python3*/site-packages")
    if has_tensorrt_llm:
        (site / "tensorrt_llm").mkdir()
        (site / "tensorrt_llm" / "__init__.py").write_text("raise ImportError('libcuda.so.1')\n")
    if packages:
        (site / "beside.pth").write_text(f"{packages}\n")
    return directory


def link(tmp_path: Path, system: Path) -> subprocess.CompletedProcess[str]:
    """The script as the image's build runs it, by the system's interpreter."""
    command = ["python3", str(SCRIPT), str(tmp_path / "python"), "--environments", str(tmp_path / "opt")]
    search = f"{system / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(command, env={"PATH": search}, capture_output=True, text=True, check=False)


def test_the_environment_that_has_tensorrt_llm_becomes_python3(tmp_path):
    ours = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    system = environment(tmp_path / "usr", has_tensorrt_llm=False)
    environment(tmp_path / "opt" / "venv-tools", has_tensorrt_llm=False)
    nvidias = environment(tmp_path / "opt" / "venv-tritonserver", has_tensorrt_llm=True, packages=ours)
    assert link(tmp_path, system).returncode == 0
    assert (tmp_path / "python").resolve() == nvidias
    python = tmp_path / "python" / "bin" / "python3"
    sees = "import importlib.util as u; print(bool(u.find_spec('tensorrt_llm')), bool(u.find_spec('pydantic')))"
    assert subprocess.run([python, "-c", sees], capture_output=True, text=True, check=True).stdout == "True True\n"


def test_an_older_image_keeps_its_systems_interpreter(tmp_path):
    system = environment(tmp_path / "usr", has_tensorrt_llm=True)
    assert link(tmp_path, system).returncode == 0
    assert (tmp_path / "python").resolve() == system


def test_an_image_without_tensorrt_llm_is_one_error(tmp_path):
    answer = link(tmp_path, environment(tmp_path / "usr", has_tensorrt_llm=False))
    assert answer.returncode == 1
    assert answer.stderr.startswith("error: no interpreter has tensorrt_llm or vllm")
    assert len(answer.stderr.splitlines()) == 1


@pytest.mark.parametrize("extra", ["store-s3", "signing"])
def test_the_serving_image_gets_what_a_pod_needs(extra):
    """A pod lays out what it verifies: from S3, with signatures."""

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[<>=!; ]", line)[0].lower() for line in requirements} - {""}

    wanted = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    given = [line for line in (DOCKER / "constraints" / "serving.txt").read_text().splitlines() if line[:1] != "#"]
    assert names(wanted) - {"urllib3"} <= names(given)  # boto3 brings it

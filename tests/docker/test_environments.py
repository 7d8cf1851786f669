"""The environments script, run for real on tiny packages, with pip kept off the network."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "docker" / "environments.py"
BACKEND = """
import zipfile
def build_editable(directory, settings=None, metadata=None):
    with zipfile.ZipFile(f"{directory}/project-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("project.pth", "")
        wheel.writestr("project-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: project\\nVersion: 1\\n")
        wheel.writestr("project-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("project-1.dist-info/RECORD", "")
    return "project-1-py3-none-any.whl"
"""


def load_script() -> ModuleType:
    specification = importlib.util.spec_from_file_location("environments_script", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


environments = load_script()


class Checkout(NamedTuple):
    """A checkout with the real script and tiny packages."""

    root: Path
    wheels: Path

    def wheel(self, name: str, version: str) -> None:
        with zipfile.ZipFile(self.wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"version = '{version}'\n")
            info = f"{name}-{version}.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    def constrain(self, name: str, *pins: str) -> None:
        (self.root / "docker" / "constraints" / f"{name}-py311.txt").write_text(
            "# a comment\n" + "\n".join(pins) + "\n"
        )

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.root / "docker" / "environments.py")]

    @property
    def environment(self) -> dict[str, str]:
        hidden = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": "/dev/null"}
        return {**hidden, **offline, "PATH": "/usr/bin:/bin"}

    def make(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command, env=self.environment, check=False, capture_output=True, text=True)

    def version(self, environment: str, package: str) -> str:
        python = self.root / ".envs" / environment / "bin" / "python"
        code = f"import {package}; print({package}.version)"
        return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    root, wheels = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("wheels")
    (root / "docker" / "constraints").mkdir(parents=True)
    shutil.copy(SCRIPT, root / "docker")
    (root / "backend.py").write_text(BACKEND)
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "project"\nversion = "1"\n'
    )
    made = Checkout(root, wheels)
    for name, version in [("alpha", "1.0"), ("alpha", "2.0"), ("torch", "2.13.0+cpu"), ("server", "0.7.0")]:
        made.wheel(name, version)
    made.constrain("control", "alpha==1.0")
    made.constrain("model", "alpha==2.0", "torch==2.13.0")
    made.constrain("triton", "server==0.7.0")
    yield made
    shutil.rmtree(root)


@pytest.mark.thorough
def test_the_environments_are_made_once_and_remade_only_when_they_must_be(checkout: Checkout) -> None:
    first = checkout.make()
    assert first.returncode == 0, first.stderr
    assert checkout.version("control", "alpha") == "1.0"
    assert checkout.version("model", "alpha") == "2.0"
    assert checkout.version("model", "torch") == "2.13.0+cpu"
    assert (checkout.root / ".envs" / "triton" / "server.py").exists()
    assert re.search(r"model: torch 2\.13\.0 +\d+\.\d s", first.stdout)
    assert first.stdout.index("model: torch") < first.stdout.index("model: 2 pinned")

    before = os.times()
    second = checkout.make()
    assert second.stdout.splitlines() == ["control: up to date", "model: up to date", "triton: up to date"]
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 3

    checkout.constrain("triton", "alpha==1.0")
    changed = checkout.make()
    assert "control: up to date" in changed.stdout
    assert "triton: packages beside control's" in changed.stdout
    assert not (checkout.root / ".envs" / "triton" / "server.py").exists()

    (checkout.root / ".envs" / "model" / environments.STAMP).unlink()
    adopted = checkout.make()
    assert "model: up to date" in adopted.stdout
    assert "model: torch" not in adopted.stdout


@pytest.mark.thorough
def test_an_installation_killed_in_the_middle_is_made_again(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / ".envs" / "control", ignore_errors=True)
    process = subprocess.Popen(
        checkout.command, env=checkout.environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    pip = checkout.root / ".envs" / "control" / "bin" / "pip"
    deadline = time.monotonic() + 300
    while not pip.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert (checkout.root / ".envs" / "control.unfinished").exists()
    again = checkout.make()
    assert again.returncode == 0, again.stderr
    assert "control: remove what an older or interrupted installation left" in again.stdout
    assert checkout.version("control", "alpha") == "1.0"
    assert not list((checkout.root / ".envs").glob("*.unfinished"))


@pytest.mark.thorough
def test_a_package_that_cannot_be_had_is_one_clear_error_and_nothing_is_marked_done(checkout: Checkout) -> None:
    checkout.constrain("triton", "missing==9.9")
    done = checkout.make()
    assert done.returncode == 1
    assert "missing==9.9" in done.stderr
    assert "Traceback" not in done.stderr
    assert "triton.log" in done.stderr
    assert not (checkout.root / ".envs" / "triton" / environments.STAMP).exists()


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Darwin", "arm64", ("", "")),
        ("Linux", "aarch64", ("glibc", "2.36")),
        ("Linux", "x86_64", ("glibc", "2.31")),
        ("Linux", "x86_64", ("", "")),
    ],
)
def test_a_platform_without_the_server_s_wheel_is_refused(system: str, machine: str, libc: tuple[str, str]) -> None:
    with pytest.raises(environments.Problem, match=r"glibc 2\.35"):
        environments.require_platform(system, machine, libc)


def test_without_root_nothing_is_installed_and_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(environments, "missing_packages", lambda: ["python3.11-venv"])
    monkeypatch.setattr(environments.os, "geteuid", lambda: 1000)
    assert environments.main(["--directory", str(tmp_path / "envs")]) == 1
    assert "apt-get install -y python3.11-venv" in capsys.readouterr().err
    assert not (tmp_path / "envs").exists()


def test_a_disk_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(environments.Problem, match="GB free"):
        environments.require_space(tmp_path, needed=10**18)


@pytest.mark.parametrize("name", ["control", "model", "triton", "vllm"])
def test_every_committed_pin_is_exact_and_from_a_public_index(name: str) -> None:
    lines = environments.constraints_of(name).read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert packages
    assert [line for line in packages if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert len(environments.pins(environments.constraints_of(name))) == len(packages)


def test_the_model_environment_suits_triton_s_stub() -> None:
    model = environments.pins(environments.constraints_of("model"))
    assert model["numpy"].startswith("1.26.")
    assert int(model["pyarrow"].partition(".")[0]) <= 23
    assert "torchvision" not in model
    assert "setuptools" in model


def test_the_script_can_be_read_by_an_older_python_which_then_says_what_it_needs() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize(("minor", "more"), [(12, {}), (13, {"pyyaml-ft": "8.0.0"})])
def test_the_control_environment_has_the_same_versions_on_every_python(minor: int, more: dict[str, str]) -> None:
    folder = REPOSITORY / "docker" / "constraints"
    ours = environments.pins(folder / "control-py311.txt")
    ours.pop("setuptools")  # of the venv of Python 3.11, and of no use to anything here
    assert environments.pins(folder / f"control-py3{minor}.txt") == ours | more

"""The wheel, installed outside the clone: its project is known to Airflow, and makes a release on this CPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("airflow")

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
MODEL_PYTHON = ROOT / ".envs/model/bin/python"


def on_other_ports(text: str) -> str:
    """Where no demo and no other test of this machine listens."""
    return re.sub(r"\b18(\d{3})\b", r"14\1", text)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of a clone, the sdist, and the wheel that the sdist makes."""
    built = tmp_path_factory.mktemp("dist")
    hatch = [sys.executable, "-m", "hatchling", "build", "-d"]
    subprocess.run([*hatch, str(built), "-t", "wheel", "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(built, filter="data")
    (source,) = (path for path in built.iterdir() if path.is_dir())
    subprocess.run([*hatch, str(built / "again"), "-t", "wheel"], cwd=source, check=True, capture_output=True)
    (again,) = (built / "again").glob("*.whl")
    return {"wheel": wheel, "sdist": sdist, "again": again}


def test_the_sdist_makes_the_same_wheel_which_has_what_is_no_module(distributions):
    wheel, again = (zipfile.ZipFile(distributions[kind]) for kind in ("wheel", "again"))
    names = wheel.namelist()
    assert {name: again.read(name) for name in again.namelist()} == {name: wheel.read(name) for name in names}
    constraints = (f"llm_pipeline/constraints/{name}.txt" for name in ("control-py312", "model-py311", "triton-py311"))
    assert {"llm_pipeline/py.typed", "llm_pipeline_airflow/py.typed", *constraints} <= {*names}
    assert any(name.endswith("licenses/LICENSE") for name in names)


class Installed:
    """A virtual environment with the wheel and nothing of the clone; what the package needs is that of `control`."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.root = root
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
        packages = next((root / "venv" / "lib").glob("python*")) / "site-packages"
        self._dependencies(packages)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*install, "--prefix", root / "venv", "--ignore-installed", wheel], check=True)

    def _dependencies(self, packages: Path) -> None:
        """Each package of this interpreter but ours, whose editable install would lead to the clone.

        Hard links: what a server may read ends with its environment's own directories.
        """
        for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if "llm_pipeline" not in path.name and not path.name.endswith(".pth"):
                if path.is_dir():
                    shutil.copytree(path, packages / path.name, copy_function=os.link, dirs_exist_ok=True)
                else:
                    os.link(path, packages / path.name)
        envoy = Path(sys.executable).with_name("envoy")  # a program, which pip puts beside the interpreter
        os.link(envoy.resolve(), self.root / "venv" / "bin" / "envoy")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "AIRFLOW", "LLM_PIPELINE"))}
        binaries = f"{self.root / 'venv' / 'bin'}:{clean['PATH']}"
        return subprocess.run(
            [str(self.root / "venv" / "bin" / "python"), *command],
            cwd=self.root, env=clean | {"PATH": binaries, "AIRFLOW_HOME": str(self.root / "airflow")} | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def call(self, *command: str, **environment: str) -> str:
        done = self.run(*command, **environment)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"), distributions["wheel"])


@pytest.fixture(scope="module")
def project(installed) -> Path:
    """A project of `init`, of a model on the hub."""
    installed.call("-m", "llm_pipeline", "init", "hub", "--model", "organisation/name")
    return installed.root / "hub"


@pytest.fixture
def trained(installed) -> Iterator[Path]:
    """A project of `init` whose model was trained here."""
    if not MODEL_PYTHON.exists():
        pytest.skip("the model environment is missing: run `make environments`")
    train = [MODEL_PYTHON, "-W", "ignore", ROOT / "tests/corpus/own_model.py", "model"]
    subprocess.run(train, cwd=installed.root, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    installed.call(
        "-m", "llm_pipeline", "init", "mine", "--model", "model", "--example",
        "--model-python", str(MODEL_PYTHON), "--triton-home", str(ROOT / ".envs/triton"),
    )  # fmt: skip
    project = installed.root / "mine"
    deployment = project / "deployments" / "local.yaml"
    deployment.write_text(on_other_ports(deployment.read_text()))
    yield project
    installed.call("-m", "llm_pipeline", "stop", "--yes", "-d", str(deployment))


def test_nothing_of_it_comes_from_the_clone(installed):
    look = (
        "import json, llm_pipeline, llm_pipeline_airflow as a; print(json.dumps([llm_pipeline.__file__, a.__file__]))"
    )
    assert all(path.startswith(str(installed.root)) for path in json.loads(installed.call("-c", look)))


def test_airflow_lists_the_dags_of_a_project_and_of_the_packages_bundle(installed, project):
    expected = {"release__first", "guard__local", "rollback__local", "retention__local", "verify__local"}
    bundle = {"name": "ours", "classpath": "llm_pipeline_airflow.bundle.ReleaseDagBundle", "kwargs": {}}
    ways = [
        ({"AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags")}, []),
        (
            {
                "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
                "AIRFLOW__LLM_PIPELINE__RELEASES": str(project / "releases"),
            },
            ["--bundle-name", "ours"],  # without it, these commands look into the DAGs folder only
        ),
    ]
    installed.call("-m", "airflow", "db", "migrate")
    for way, where in ways:
        settings = {"AIRFLOW__CORE__LOAD_EXAMPLES": "False"} | way
        listed = installed.call("-m", "airflow", "dags", "list", "--local", "-o", "json", *where, **settings)
        assert {row["dag_id"] for row in json.loads(listed.splitlines()[-1])} == expected
        errors = installed.call(
            "-m", "airflow", "dags", "list-import-errors", "--local", "-o", "json", *where, **settings
        )
        assert json.loads(errors.splitlines()[-1]) == []


def test_airflow_knows_the_option_and_its_default(installed):
    settings = {"AIRFLOW__LLM_PIPELINE__RELEASES": "/somewhere"}
    shown = installed.call("-m", "airflow", "config", "list", "--section", "llm_pipeline", "--show-values", **settings)
    assert "releases = /somewhere" in shown
    default = installed.call("-m", "airflow", "config", "get-value", "llm_pipeline", "releases")
    assert default.splitlines()[-1] == "releases, configs/releases"


def test_a_whole_release_is_made_of_the_project(installed, trained):
    release = str(trained / "releases" / "first.yaml")
    installed.call("-m", "llm_pipeline", "plan", release)
    said = installed.call("-m", "llm_pipeline", "run", release, "--approve")
    assert "curl" in said
    status = json.loads(
        installed.call("-m", "llm_pipeline", "status", "--json", "-d", str(trained / "deployments/local.yaml"))
    )
    assert status

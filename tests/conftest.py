"""Which interpreter runs which test, so that every test runs exactly once.

A test file that needs a package of the model environment says so with `pytest.importorskip("torch")` (or another of
`MODEL_PACKAGES`) at its top level; it runs under `.envs/model`. Every other file runs under `.envs/control`. An
interpreter that has both Airflow and torch runs everything.

Tests of the control environment come in three parts: `live` ones judge times or start servers, and go before all
others; `airflow` ones start a whole Airflow, and run beside the end-to-end tests; `calm` ones yield to both.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llm_pipeline.config.quantization import QuantizationRecipe

# Read when torch or numpy is imported, here and in all that tests start. With two threads on two busy cores, one spins
# while it waits for the other: tiny models take twenty times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Half a million objects that imports and collection make stay to the end: to look through them again and again takes a
# third of the collection's time, in each process.
gc.set_threshold(50_000, 20, 50)

MODEL_PACKAGES = (
    "accelerate", "datasets", "lm_eval", "modelopt", "nncf", "openvino", "openvino_genai", "optimum", "safetensors",
    "tokenizers", "torch", "transformers",
)  # fmt: skip
CALM = (
    "accuracy", "airflow", "config", "corpus", "fuzz", "hub", "planning", "quantization", "release", "reporting",
    "store", "canary/test_analysis.py",
    "canary/test_eprocess.py",
    "canary/test_gateway_api.py", "demo/test_tasks.py",
    "docker/test_environments.py", "engines/test_tensorrt_llm_engine.py", "engines/test_tensorrt_llm_llmapi.py",
    "test_base_install.py", "test_broken_files_and_disks.py", "test_cli.py", "test_docs.py", "test_docs_site.py",
    "test_doctor.py", "test_inspection.py", "test_retention.py", "test_trusted_pointers.py", "test_model_rules.py",
    "test_yaml_document.py",
)  # fmt: skip
"""Rooms and files whose tests start no servers on fixed ports and may be slow: they yield to all others."""
AIRFLOW = (
    "airflow/test_claim_dag_runs.py", "airflow/test_real_airflow.py", "airflow/test_real_watch.py",
    "airflow/test_stopped_airflow.py", "airflow/test_watch.py",
)  # fmt: skip
"""Files of such rooms that take minutes of Airflow's processes, or would starve if they yielded."""
NOT_CALM = ("store/test_lease.py",)
"""Files of such rooms that a busy machine would disturb."""
PARTS = ("live", "airflow", "calm")
_NEEDS_MODEL_PACKAGE = re.compile(
    rf"""^(?:\w+ = )?pytest\.importorskip\(\s*["'](?:{"|".join(MODEL_PACKAGES)})[."']""", re.MULTILINE
)
_THOROUGH = re.compile(r"^pytestmark = .*\bpytest\.mark\.thorough\b", re.MULTILINE)
_TESTS = Path(__file__).parent
_CONFIGS = _TESTS.parent / "configs"
_HAS_MODEL_PACKAGES = importlib.util.find_spec("torch") is not None
_HAS_CONTROL_PACKAGES = importlib.util.find_spec("airflow") is not None

# Where the modules are that tests share. Behind all others, and after the question above: a folder here is named as
# Airflow is.
ROOMS_OF_DOUBLES = (
    "", "accuracy", "airflow", "canary", "corpus", "demo", "doubles", "engines", "fuzz", "hub", "loadtest",
    "notifications", "operations", "planning", "quantization", "reporting", "serving", "serving/faulty_model",
    "serving/packaged",
)  # fmt: skip
sys.path += [str(_TESTS / room) for room in ROOMS_OF_DOUBLES]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--part`: which tests to run."""
    parser.addoption("--part", choices=PARTS, help="only tests of one part; see tests/conftest.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a test file of the other part, and one that the other interpreter runs."""
    if collection_path.is_dir() or not collection_path.match("test_*.py"):
        return None
    if config.option.part not in (None, _part_of(collection_path)):
        return True
    text = collection_path.read_text()
    if config.option.markexpr == "not thorough" and _THOROUGH.search(text):
        return True  # its imports alone take seconds, in each process
    needs_model_packages = _NEEDS_MODEL_PACKAGE.search(text) is not None
    runs_here = _HAS_MODEL_PACKAGES if needs_model_packages else _HAS_CONTROL_PACKAGES
    return None if runs_here else True


def _part_of(test_file: Path) -> str:
    path = test_file.relative_to(_TESTS)
    if path.as_posix() in AIRFLOW:
        return "airflow"
    calm = path.as_posix() not in NOT_CALM and (path.parts[0] in CALM or path.as_posix() in CALM)
    return "calm" if calm else "live"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests: a long one that begins last leaves all cores but one idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Leave what imports and collection made alone from now on."""
    gc.freeze()


@pytest.fixture
def configs(tmp_path):
    """A private copy of the committed configs."""
    return Path(shutil.copytree(_CONFIGS, tmp_path / "configs")).resolve()


@pytest.fixture
def edit(configs):
    """Replace one piece of a file of the test's own `configs`; returns the line that it starts on."""

    def replace(name, old, new):
        path = configs / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new, 1))
        return text[: text.index(old)].count("\n") + 1

    return replace


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A real checkpoint: the demo model, trained for a few steps."""
    pytest.importorskip("torch")
    import briefly_trained

    return briefly_trained.checkpoint(tmp_path_factory.getbasetemp())


@pytest.fixture
def small_disk(tmp_path):
    """Mounts file systems of some kilobytes, with the options of a `tmpfs`; skips where nobody may mount."""
    mounted = []

    def mount(options):
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may mount nothing")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def store(tmp_path):
    """An empty store in a directory."""
    from llm_pipeline.store import open_store

    return open_store(f"file://{tmp_path / 'store'}")


@pytest.fixture(scope="session")
def signing(tmp_path_factory):
    """Signs with a key of its own, and trusts it."""
    from signing_keys import signing_with_new_keys

    return signing_with_new_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="session")
def s3_server():
    """A real S3 API server, one a test process; `s3_server.bucket()` gives a new bucket."""
    import s3_server as module

    with module.serve_s3() as server:
        yield server


@pytest.fixture
def s3(s3_server, monkeypatch):
    """The server, with the credentials that the default chain finds."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-key")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return s3_server


@pytest.fixture(scope="session")
def recipe():
    """Reads a committed quantization recipe by name."""

    def read(name):
        content = yaml.safe_load((_CONFIGS / "quantization" / f"{name}.yaml").read_text())
        return QuantizationRecipe(name=name, **content)

    return read


@pytest.fixture(scope="session")
def quantized(source, recipe, tmp_path_factory):
    """Exported checkpoints by recipe (without calibration), each made when it is first asked for."""
    import torch

    from llm_pipeline.quantization.modelopt_quantizer import Quantizer

    made = {}

    def make(name):
        if name not in made:
            destination = tmp_path_factory.mktemp(name) / "checkpoint"
            Quantizer(source, recipe(name), None, dtype=torch.float16, device="cpu").export(destination)
            made[name] = destination
        return made[name]

    return make


@pytest.fixture(scope="session")
def kubernetes_server():
    """A real Kubernetes API server, one a test process; skips where it was not built (`make kubernetes`)."""
    import kubernetes_server as module

    with module.kubernetes_server() as server:
        yield server


@pytest.fixture(scope="session")
def started_engine():
    """A container engine with one image, for all tests of this process."""
    from container_engine import real_engine

    with real_engine() as started:
        yield started


@pytest.fixture
def engine(started_engine, monkeypatch):
    """A real container engine, whose program is found first."""
    monkeypatch.setenv("PATH", str(started_engine.program.parent), prepend=":")
    yield started_engine
    for name in started_engine.names("--all"):
        started_engine.ask("rm", "--force", name)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The double of a Kubernetes API server."""
    from kubernetes_api import KubernetesApi

    double = KubernetesApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(double.kubeconfig()))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    yield double
    double.close()

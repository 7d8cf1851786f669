"""A GPU host on a machine without one: doubles of the driver and of TensorRT-LLM, all else as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployment_here import place_document

from llm_pipeline.adapters.envoy.router import stop_router
from llm_pipeline.artifacts.items import read_items
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.serving.triton_server import stop_server

_REPOSITORY = Path(__file__).parents[2]
_DOUBLES = _REPOSITORY / "tests" / "doubles"
_H200 = {"name": "NVIDIA H200", "compute_cap": "9.0", "memory.total": 143771, "driver_version": "590.44.01"}
_L40S = {"name": "NVIDIA L40S", "compute_cap": "8.9", "memory.total": 46068, "driver_version": "590.44.01"}
GPUS = {"H200": _H200, "L40S": _L40S}
TARGET = "h200"
_PORT = 19500


class GpuSite:
    """The site's release on a GPU target, with the site's store: what it computed is found again.

    Args:
        site: Where the demo was released.
        place: Directory of the host's interpreter, driver and servers.
    """

    def __init__(self, site: Any, place: Path) -> None:
        self._site, self._place = site, place
        self._answers = place / "answers.json"
        self._write_interpreter()
        self._write_configs()

    def run(self, *, gpu: str) -> subprocess.CompletedProcess[str]:
        """Release it on a host with such a GPU."""
        one = {**GPUS[gpu], "memory.used": 1000, "memory.free": 40000}
        environment = os.environ | {"PATH": f"{_DOUBLES}:{os.environ['PATH']}", "TRTLLM_DOUBLE_GPUS": json.dumps([one])}
        command = [sys.executable, "-m", "llm_pipeline", "run", str(self.release), "--approve"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)

    @property
    def release(self) -> Path:
        """The release config."""
        return self._site.layout.configs / "releases" / "gpu.yaml"

    def learn_answers(self) -> None:
        """Let the double of TensorRT-LLM answer as the released checkpoint did, else as the baseline."""
        flow, answers = self._site.flow("demo"), {}
        chosen = flow.chosen_recipe("cpu")
        for stage, subject in (("baseline", ""), ("accuracy", chosen)):
            items = read_items(self._site.store.fetch(flow.artifact(stage, subject, "evaluation")))
            answers |= {item.prompt: item.completion for item in items if item.generative}
        self._answers.write_text(json.dumps(answers))

    def stop(self) -> None:
        """Stop what serves."""
        state = self._place / "state" / TARGET
        if (state / "router").is_dir():
            stop_router(state / "router")
        for server in ("staging", "blue", "green"):
            stop_server(state / server)

    def _write_interpreter(self) -> None:
        """The model environment, with TensorRT-LLM's double in it: servers get no PYTHONPATH."""
        model = Path(self._site.deployment.interpreter("model"))
        subprocess.run([str(model), "-m", "venv", "--without-pip", str(self._place / "environment")], check=True)
        (packages,) = model.parent.parent.glob("lib/python*/site-packages")
        (own,) = (self._place / "environment").glob("lib/python*/site-packages")
        lines = [str(_REPOSITORY), str(_DOUBLES / "tensorrt_llm_package"), str(packages)]
        variables = {"TRTLLM_DOUBLE_COMPLETIONS": str(self._answers), "TRTLLM_DOUBLE_VERSION": "1.2.1"}
        lines += [f"import os; os.environ.setdefault({name!r}, {value!r})" for name, value in variables.items()]
        (own / "doubles.pth").write_text("\n".join(lines) + "\n")
        self._answers.write_text("{}")

    def _write_configs(self) -> None:
        configs, python = self._site.layout.configs, str(self._place / "environment" / "bin" / "python")
        target = yaml.safe_load((configs / "targets" / f"{TARGET}.yaml").read_text())
        limits = {"maximum_sequences": 32, "maximum_tokens_per_request": 128, "maximum_batched_tokens": 512}
        (configs / "targets" / f"{TARGET}.yaml").write_text(
            yaml.safe_dump(target | {"environment": "trtllm", "limits": limits})
        )
        deployment = yaml.safe_load(self._site.layout.deployment.read_text())
        control = deployment["environments"]["control"]
        place = place_document(iter(range(_PORT, _PORT + 50)))
        for server in ("staging", "blue", "green"):
            place[server]["readable"] = [str(self._answers)]
        deployment |= {
            "state_root": str(self._place / "state"),
            "environments": {"control": control, "model": python, "trtllm": python},
            "places": {TARGET: place},
        }
        path = configs / "deployments" / "gpu.yaml"
        path.write_text(yaml.safe_dump(deployment))
        load_yaml(path, Deployment)
        self._site.release("gpu", targets=[TARGET], deployment="gpu")


@contextmanager
def gpu_site(site: Any, place: Path) -> Iterator[GpuSite]:
    """A GPU host whose servers are stopped in the end."""
    place.mkdir()
    host = GpuSite(site, place)
    try:
        yield host
    finally:
        host.stop()

"""The demo's places and services: paths and ports, the model's training, the local hub, background traffic."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError, StageCrashed, Transient
from llm_pipeline.base.logging import LogRelay, get_logger
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.demo.local_airflow import stop_airflow
from llm_pipeline.serving.ports import require_free_port

MODEL_ID = "demo/tiny-llama"
TARGET = "cpu"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class DemoLayout:
    """Paths and ports of one demo.

    Attributes:
        root: Everything the demo writes is below this directory; the deployment file names the same one.
        configs: The configuration tree.
        airflow_port: Loopback port of Airflow's UI and API.
        requests_per_second: Background traffic to production.
    """

    root: Path = _REPOSITORY / ".pipeline"
    configs: Path = _REPOSITORY / "configs"
    airflow_port: int = 18080
    requests_per_second: float = 25.0

    @property
    def deployment(self) -> Path:
        """Path of the demo's deployment file."""
        return self.configs / "deployments" / "local.yaml"

    @property
    def model(self) -> Path:
        """The trained model, as its author would push it."""
        return self.root / "demo" / "model"

    @property
    def hub(self) -> Path:
        """Directory of the local hub's repositories."""
        return self.root / "demo" / "hub"

    @property
    def services(self) -> Path:
        """Records and logs of the demo's own processes."""
        return self.root / "demo" / "services"

    @property
    def traffic_record(self) -> Path:
        """File that counts the background traffic's requests by outcome."""
        return self.services / "traffic.json"

    @property
    def airflow(self) -> Path:
        """Airflow's home: database, logs and process records."""
        return self.root / "airflow"

    def release(self, name: str) -> Path:
        """Path of a release config by its name."""
        return self.configs / "releases" / f"{name}.yaml"


log = get_logger(__name__)


@contextmanager
def training(layout: DemoLayout, deployment: Deployment) -> Iterator[Callable[[], bool]]:
    """Train the demo model in a process of its own, unless it is there; an unfinished training is stopped.

    Yields:
        Waits for the end, and returns whether the model was trained now.

    Raises:
        StageCrashed: Of the function: training failed; the message holds the end of its log.
    """
    if (layout.model / "training.json").is_file():
        yield lambda: False
        return
    command = [deployment.interpreter("model"), "-m", "llm_pipeline.demo.train", "--output", str(layout.model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield partial(_finish_training, process)
        finally:
            process.terminate()  # none that has ended


def _finish_training(process: subprocess.Popen[str]) -> bool:
    lines = list(_relayed(process))
    if process.wait() != 0:
        raise StageCrashed(f"training ended with code {process.returncode}:\n" + "".join(lines[-8:]))
    return True


def start_hub(layout: DemoLayout, deployment: Deployment) -> str:
    """Publish the trained model and serve it where the deployment looks for it; returns the commit.

    Raises:
        ConfigError: The hub's port is taken, or the deployment's hub is not on loopback.
        Transient: The hub does not answer.
    """
    commit = publish_revision(layout.hub, MODEL_ID, layout.model, "Trained by make demo")
    endpoint = urlsplit(deployment.hub.endpoint or "")
    if endpoint.hostname != "127.0.0.1" or endpoint.port is None:
        raise ConfigError("the demo's hub needs hub.endpoint: http://127.0.0.1:PORT", where=str(layout.deployment))
    record = layout.services / "hub.json"
    running = detached.load(record)
    if running is None or not running.alive:
        require_free_port(endpoint.port, role="hub", what="the demo's hub")
        command = [sys.executable, "-m", "llm_pipeline.demo.hub"]
        command += ["--root", str(layout.hub), "--port", str(endpoint.port)]
        detached.start("demo hub", command, record, log=layout.services / "hub.log")
    _await_answer(f"{deployment.hub.endpoint}/api/models/{MODEL_ID}", record, layout.services / "hub.log")
    return commit


def start_traffic(layout: DemoLayout, deployment: Deployment) -> None:
    """Send background requests to production until stopped."""
    record = layout.services / "traffic-process.json"
    running = detached.load(record)
    if running is not None and running.alive:
        return
    port = router_port(deployment)
    command = [sys.executable, "-m", "llm_pipeline.demo.traffic", "--url", f"http://127.0.0.1:{port}"]
    command += ["--rate", str(layout.requests_per_second), "--record", str(layout.traffic_record)]
    command += ["--prompts", str(layout.configs / "workloads" / "demo.jsonl")]
    detached.start("demo traffic", command, record, log=layout.services / "traffic.log")


def router_port(deployment: Deployment) -> int:
    """The port of the demo's router.

    Raises:
        ConfigError: The router does not run on this host.
    """
    router = deployment.places[TARGET].router
    if not isinstance(router, EnvoyPlace):
        raise ConfigError(f"the demo needs a router of kind envoy, not {router.kind}", where=f"places.{TARGET}.router")
    return router.port


def stop_traffic(layout: DemoLayout) -> None:
    """Stop the background traffic, letting requests in flight end."""
    record = layout.services / "traffic-process.json"
    if process := detached.load(record):
        detached.stop(process)
        record.unlink(missing_ok=True)


def read_traffic(layout: DemoLayout) -> dict[str, object]:
    """The background traffic's record so far."""
    try:
        found: dict[str, object] = json.loads(layout.traffic_record.read_text())
    except FileNotFoundError:
        return {}
    return found


def generate(deployment: Deployment, prompt: str, maximum_tokens: int = 8) -> str:
    """One answer from the production endpoint.

    Raises:
        Transient: Production does not answer.
    """
    port = router_port(deployment)
    url = f"http://127.0.0.1:{port}/v1/completions"
    body = json.dumps({"prompt": prompt, "max_tokens": maximum_tokens, "temperature": 0}).encode()
    try:
        answer = call(url, seconds=30, method="POST", headers={"Content-Type": "application/json"}, body=body)
        return str(json.loads(answer.body)["choices"][0]["text"]).strip()
    except (OSError, KeyError, ValueError) as error:
        raise Transient(f"production does not answer: {error!r}", where=url) from error


def stop_everything(layout: DemoLayout) -> list[str]:
    """Stop every process that the demo or any release below it started; returns what was running."""
    from llm_pipeline.operations.switching import end_here

    stopped = [process.name for process in _running_processes(layout)]
    stop_traffic(layout)
    stop_airflow(layout.airflow)
    if layout.deployment.is_file():
        deployment = load_yaml(layout.deployment, Deployment)
        for job in Path(deployment.work_root).glob("jobs/*/*/*/process.json"):
            if process := detached.load(job):
                detached.stop(process)
        for place in deployment.places:
            end_here(deployment, place)
    if hub := detached.load(layout.services / "hub.json"):
        detached.stop(hub)
    return stopped


def _running_processes(layout: DemoLayout) -> Iterator[detached.DetachedProcess]:
    for record in sorted(layout.root.rglob("*.json")):
        if not record.is_file() or record.stat().st_size > 65536:  # noqa: PLR2004 - a record is far smaller
            continue
        process = detached.parsed(record.read_bytes())  # None for the other kinds of file
        if process is not None and process.session_alive:
            yield process


def _relayed(process: subprocess.Popen[str]) -> Iterator[str]:
    import logging

    relay = LogRelay(logging.getLogger("llm_pipeline.demo.train"))
    for line in process.stdout or ():
        relay.relay(line)
        yield line


def _await_answer(url: str, record: Path, log_file: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while (reason := _silence(url)) is not None:
        process = detached.load(record)
        if process is None or not process.alive or time.monotonic() > deadline:
            raise Transient(f"no answer: {reason}", where=url, hint=f"see {log_file}")
        time.sleep(0.1)


def _silence(url: str) -> str | None:
    """Why a URL does not answer 200 yet; None when it does."""
    try:
        status = call(url, seconds=5).status
    except OSError as error:
        return str(error)
    return None if status == HTTPStatus.OK else f"HTTP {status}"

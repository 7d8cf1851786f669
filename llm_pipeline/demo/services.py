"""The demo's places and services: its models, paths and ports, the local hub, background traffic, and one question."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.errors import ConfigError, StageCrashed, Transient
from llm_pipeline.base.logging import LogRelay
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.config.deployment import Deployment
from llm_pipeline.config.loading import load_yaml
from llm_pipeline.demo.hub import publish_revision
from llm_pipeline.demo.local_airflow import stop_airflow
from llm_pipeline.demo.traffic import TrafficRecord
from llm_pipeline.serving.ports import require_free_port

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class DemoModel:
    """What a demo releases.

    Attributes:
        id: Its name on the demo's hub.
        maker: Module that makes its checkpoint, given `--output DIR`, in the model environment.
        release: Name of its release config; that of what serves before ends in `-baseline`.
        place: Where it serves.
        prompts: Of the background traffic, below the configs.
        requests_per_second: Background traffic to production.
        question: What is asked in the end; as a chat where the model has a chat format.
    """

    id: str
    maker: str
    release: str
    place: str
    prompts: str
    requests_per_second: float
    question: str
    is_chat: bool = False


TINY = DemoModel(
    id="demo/tiny-llama",
    maker="llm_pipeline.demo.train",
    release="demo",
    place="cpu",
    prompts="workloads/demo.jsonl",
    requests_per_second=25.0,
    question="7 + 5 =",
)
CHAT = DemoModel(
    id="demo/SmolLM2-135M-Instruct",
    maker="llm_pipeline.demo.smollm2",
    release="demo-chat",
    place="chat",
    prompts="workloads/chat-example.jsonl",
    requests_per_second=0.2,
    question="What is photosynthesis, in one sentence?",
    is_chat=True,
)


@dataclass(frozen=True)
class DemoLayout:
    """Paths and ports of one demo.

    Attributes:
        root: Everything the demo writes is below this directory; the deployment file names the same one.
        configs: The configuration tree.
        airflow_port: Loopback port of Airflow's UI and API.
        model: What it releases.
    """

    root: Path = _REPOSITORY / ".pipeline"
    configs: Path = _REPOSITORY / "configs"
    airflow_port: int = 18080
    model: DemoModel = TINY

    @property
    def deployment(self) -> Path:
        """Path of the demo's deployment file."""
        return self.configs / "deployments" / "local.yaml"

    @property
    def checkpoint(self) -> Path:
        """The model's files, as their author would push them."""
        return self.root / "demo" / self.model.release

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
        return self.services / f"traffic-{self.model.release}.json"

    @property
    def airflow(self) -> Path:
        """Airflow's home: database, logs and process records."""
        return self.root / "airflow"

    def release(self, name: str) -> Path:
        """Path of a release config by its name."""
        return self.configs / "releases" / f"{name}.yaml"


_TRAFFIC = "traffic-process-"


@contextmanager
def making(layout: DemoLayout, deployment: Deployment) -> Iterator[Callable[[], bool]]:
    """Make the model's checkpoint in a process of its own, unless it is there; an unfinished one is stopped.

    Yields:
        Waits for the end, and returns whether it was made now.

    Raises:
        StageCrashed: Of the function: it failed; the message holds the end of its log.
    """
    if layout.checkpoint.is_dir():
        yield lambda: False
        return
    command = [deployment.interpreter("model"), "-m", layout.model.maker, "--output", str(layout.checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield partial(_finish, process)
        finally:
            process.terminate()  # none that has ended


def _finish(process: subprocess.Popen[str]) -> bool:
    relay = LogRelay(logging.getLogger("llm_pipeline.demo.model"))
    lines = []
    for line in process.stdout or ():
        relay.relay(line)
        lines.append(line)
    if process.wait() != 0:
        raise StageCrashed(f"making the model ended with code {process.returncode}:\n" + "".join(lines[-8:]))
    return True


def start_hub(layout: DemoLayout, deployment: Deployment) -> str:
    """Publish the model and serve it where the deployment looks for it; returns the commit.

    Raises:
        ConfigError: The hub's port is taken, or the deployment's hub is not on loopback.
        Transient: The hub does not answer.
    """
    commit = publish_revision(layout.hub, layout.model.id, layout.checkpoint, "Made by the demo")
    endpoint = urlsplit(deployment.hub.endpoint or "")
    if endpoint.hostname != "127.0.0.1" or endpoint.port is None:
        raise ConfigError("the demo's hub needs hub.endpoint: http://127.0.0.1:PORT", where=str(layout.deployment))
    record = layout.services / "hub.json"
    if not _runs(record):
        require_free_port(endpoint.port, role="hub", what="the demo's hub")
        command = [sys.executable, "-m", "llm_pipeline.demo.hub"]
        command += ["--root", str(layout.hub), "--port", str(endpoint.port)]
        detached.start("demo hub", command, record, log=layout.services / "hub.log")
    _await_answer(f"{deployment.hub.endpoint}/api/models/{layout.model.id}", record, layout.services / "hub.log")
    return commit


def start_traffic(layout: DemoLayout, deployment: Deployment) -> None:
    """Send background requests to production until stopped."""
    record = layout.services / f"{_TRAFFIC}{layout.model.release}.json"
    if _runs(record):
        return
    command = [sys.executable, "-m", "llm_pipeline.demo.traffic", "--url", users_url(deployment, layout.model)]
    command += ["--rate", str(layout.model.requests_per_second), "--record", str(layout.traffic_record)]
    command += ["--prompts", str(layout.configs / layout.model.prompts)]
    detached.start("demo traffic", command, record, log=layout.services / "traffic.log")


def users_url(deployment: Deployment, model: DemoModel) -> str:
    """Where users of a model ask it.

    Raises:
        ConfigError: The router does not run on this host.
    """
    router = deployment.places[model.place].router
    if not isinstance(router, EnvoyPlace):
        raise ConfigError(f"the demo needs kind: envoy, not {router.kind}", where=f"places.{model.place}.router")
    return f"http://127.0.0.1:{router.port}"


def stop_traffic(layout: DemoLayout) -> None:
    """Stop the background traffic to all models, letting requests in flight end."""
    for record in layout.services.glob(f"{_TRAFFIC}*.json"):
        if process := detached.load(record):
            detached.stop(process)
            record.unlink(missing_ok=True)


def read_traffic(layout: DemoLayout) -> TrafficRecord:
    """The background traffic's record so far."""
    try:
        return TrafficRecord.model_validate_json(layout.traffic_record.read_bytes())
    except FileNotFoundError:
        return TrafficRecord()


def ask(deployment: Deployment, model: DemoModel, show: Callable[[str], object]) -> int:
    """Ask production the model's question, and show its answer as it is written; returns how many tokens it has.

    Raises:
        Transient: Production does not answer.
    """
    url = f"{users_url(deployment, model)}/v1/{'chat/' if model.is_chat else ''}completions"
    asked = {"messages": [{"role": "user", "content": model.question}]} if model.is_chat else {"prompt": model.question}
    options = {"max_tokens": 96, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    tokens = 0
    try:
        with httpx.stream("POST", url, json={"model": model.id, **asked, **options}, timeout=60.0) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": []}
                for choice in event["choices"]:
                    show(choice["delta"].get("content") or "" if model.is_chat else choice["text"])
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except (httpx.HTTPError, LookupError, ValueError) as error:
        raise Transient(f"production does not answer: {error!r}", where=url) from error
    return tokens


def stop_everything(layout: DemoLayout) -> None:
    """Stop every process that the demo or any release below it started."""
    from llm_pipeline.operations.switching import end_here

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


def _await_answer(url: str, record: Path, log_file: Path, seconds: float = 120.0) -> None:
    reason = "not asked yet"

    def ended() -> bool:
        nonlocal reason
        try:
            reason = "" if (status := call(url, seconds=5).status) == HTTPStatus.OK else f"HTTP {status}"
        except OSError as error:
            reason = str(error)
        return not reason or not _runs(record)

    wait_until(ended, seconds, every=0.1)
    if reason:
        raise Transient(f"no answer: {reason}", where=url, hint=f"see {log_file}")


def _runs(record: Path) -> bool:
    process = detached.load(record)
    return process is not None and process.alive

"""A token is planted in every credential, real parts use them, well and badly, and then no trace of them may be left.

What runs: stages in processes of their own (a download from a gated repository into a signed store in S3, with right
and wrong credentials, one that crashes and one that is killed), an Airflow operator, the S3 store against a server
that is not there or refuses, the hub's client, the router, and commands. What is searched: logs,
requests, results, manifests, documents, all objects in S3, what was returned and raised, and `/proc` of every process
while it runs.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from free_ports import free_ports
from local_hub import safetensors_bytes, serve_local_hub
from resolved_release import deployment_below, request_below
from secret_traces import ProcessWatch, search
from signing_keys import signing_with_new_keys
from stage_interpreter import write_interpreter

from llm_pipeline.adapters.envoy.adapter import EnvoyPlace
from llm_pipeline.adapters.envoy.router import start_router, stop_router
from llm_pipeline.adapters.local.runner import ProcessRunner
from llm_pipeline.artifacts.pinned import HubFile, PinnedModel
from llm_pipeline.base import detached
from llm_pipeline.base.errors import PipelineError
from llm_pipeline.base.logging import JsonLineFormatter
from llm_pipeline.canary.router import all_to
from llm_pipeline.config.deployment import Deployment, HubAccess
from llm_pipeline.config.release import ModelSource
from llm_pipeline.config.server_place import ServerPorts
from llm_pipeline.config.store import StoreModel, store_settings
from llm_pipeline.hub.access import connect
from llm_pipeline.hub.sources import open_source
from llm_pipeline.release.contract import StageRequest
from llm_pipeline.runners.runner import Job, Placement
from llm_pipeline.stages.download import download_config
from llm_pipeline.store import open_store

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[1]
_SCRIPTS = Path(__file__).with_name("secret_scripts")


@dataclass(frozen=True)
class Credential:
    """A secret, and the environment variable that holds it; its value is awkward in every notation.

    Attributes:
        variable: Where it is planted; None for one that is written into configurations.
        for_stages: Whether a stage needs it in its environment.
        pattern: How the variable holds it.
    """

    variable: str | None
    for_stages: bool = False
    pattern: str = "{}"
    token: str = field(default_factory=lambda: f'{secrets.token_hex(12)}"/+=<{secrets.token_hex(12)}')


HUB_TOKEN_VARIABLE = "HF_TOKEN"
CREDENTIALS = {
    "hub token": Credential(HUB_TOKEN_VARIABLE, for_stages=True),
    "hub token without access": Credential("OTHER_HUB_TOKEN", for_stages=True),
    "AWS secret key": Credential("AWS_SECRET_ACCESS_KEY", for_stages=True),
    "AWS session token": Credential("AWS_SESSION_TOKEN", for_stages=True),
    "signing key's password": Credential("SIGNING_PASSWORD", for_stages=True),
    "wrong password": Credential("WRONG_SIGNING_PASSWORD", for_stages=True),
    "Airflow connection": Credential("AIRFLOW_CONN_HUB", pattern="http://login:{}@hub.example"),
    "Airflow setting": Credential("AIRFLOW__API_AUTH__JWT_SECRET"),
    "credentials in a URL": Credential(None),
}
HUB_TOKEN = CREDENTIALS["hub token"]
URL_WITH_CREDENTIALS = f"https://user:{quote(CREDENTIALS['credentials in a URL'].token, safe='')}@hub.example"
"""Where nobody should write them, and somebody will."""

STORE_WITH_CREDENTIALS = URL_WITH_CREDENTIALS.replace("https://", "s3://")


@dataclass
class Scene:
    """Everything that ran, and what it left.

    Attributes:
        left: Directory of all that was written, logged, printed, returned and raised.
        watch: What `/proc` showed meanwhile.
        outcomes: How each part ended: `result`, or the type of its error.
    """

    left: Path
    watch: ProcessWatch
    outcomes: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, work: Callable[[], object]) -> None:
        """Run a part and keep what it returns or raises, tracebacks of all causes included."""
        try:
            returned = work()
            self.outcomes[name], text = "result", repr(returned)
        except PipelineError as error:
            self.outcomes[name] = str(getattr(error, "document", error.to_document()).type)
            text = "".join(traceback.format_exception(error)) + error.to_document().model_dump_json() + repr(error)
        (self.left / f"{name}.txt").write_text(text)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, s3_server: Any) -> Iterator[Scene]:
    """Runs all parts once; the models' files are given to the hub token alone."""
    place = tmp_path_factory.mktemp("secrets")
    (left := place / "left").mkdir()
    with serve_local_hub(place) as hub, pytest.MonkeyPatch.context() as environment, _logs_into(left / "log.jsonl"):
        for model in ("published", "refused", "unsigned", "crashed", "killed", "operated"):
            hub.publish(f"demo/{model}", model__safetensors=safetensors_bytes(64))
            hub.restrict(f"demo/{model}", gated="manual", readers=(HUB_TOKEN.token,))
        for credential in CREDENTIALS.values():
            if credential.variable:
                environment.setenv(credential.variable, credential.pattern.format(credential.token))
        environment.setenv("AWS_ACCESS_KEY_ID", "test-access-key")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with ProcessWatch() as watch:
            scene = Scene(left, watch)
            Parts(scene, hub.endpoint, s3_server, place).run()
        yield scene


@contextmanager
def _logs_into(path: Path) -> Iterator[None]:
    """Everything that this process logs at the level of a stage's process."""
    handler = logging.FileHandler(path)
    handler.setFormatter(JsonLineFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


class Parts:
    """The parts that use the credentials."""

    def __init__(self, scene: Scene, endpoint: str, s3_server: Any, place: Path) -> None:
        self.scene = scene
        self.access = HubAccess(endpoint=endpoint)
        self.s3_server = s3_server
        self.place = place
        self.bucket = s3_server.bucket()
        password = CREDENTIALS["signing key's password"].token
        self.signing = signing_with_new_keys(place / "keys", password).model_copy(
            update={"password_variable": "SIGNING_PASSWORD"}
        )
        self.in_s3 = store_settings(
            uri=f"s3://{self.bucket}/store",
            endpoint=s3_server.endpoint,
            cache=str(scene.left / "cache"),
            signing=self.signing,
        )
        wrong = self.signing.model_copy(update={"password_variable": "WRONG_SIGNING_PASSWORD"})
        self.local = store_settings(uri=(scene.left / "store").as_uri())
        self.unsignable = self.local.model_copy(update={"signing": wrong})
        self.runner = ProcessRunner(_deployment(scene.left, sys.executable, self.local, self.access))
        self.scripted = ProcessRunner(
            _deployment(
                scene.left,
                str(write_interpreter(place / "python", _SCRIPTS / "run_stage.py", REPOSITORY)),
                self.local,
                self.access,
            )
        )

    def run(self) -> None:
        """Processes side by side, and meanwhile what runs in this one."""
        jobs = {
            "published": (self.runner, self._submit(self.runner, "published", self.in_s3)),
            "refused": (self.runner, self._submit(self.runner, "refused", self.in_s3, "OTHER_HUB_TOKEN")),
            "unsigned": (self.runner, self._submit(self.runner, "unsigned", self.unsignable)),
            "crashed": (self.scripted, self._submit(self.scripted, "crashed", self.local)),
            "killed": (self.scripted, self._submit(self.scripted, "killed", self.local)),
        }
        commands = self._start_commands()
        self._hub_client()
        self._router()
        for name, (runner, job) in jobs.items():
            _wait(runner, job, kill=name == "killed")
            self.scene.attempt(name, lambda runner=runner, job=job: runner.outcome(job))
        for name, command in commands.items():
            self.scene.outcomes[name] = str(command.wait(300))
        self._store()
        for key, data in _objects(self.s3_server, self.bucket):
            path = self.scene.left / "s3" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def request(self, model: str, store: StoreModel, token_variable: str = HUB_TOKEN_VARIABLE) -> StageRequest:
        """The download of a model."""
        pinned = open_source("hub", self.access, store).resolve(f"demo/{model}", "main")
        access = self.access.model_copy(update={"token_variable": token_variable})
        return _request(model, pinned, store, access, self.scene.left)

    def _submit(
        self, runner: ProcessRunner, model: str, store: StoreModel, token_variable: str = HUB_TOKEN_VARIABLE
    ) -> Job:
        return runner.submit(self.request(model, store, token_variable), Placement(environment="control"))

    def _hub_client(self) -> None:
        for name, variable in (("without a token", "NO_TOKEN"), ("with another's token", "OTHER_HUB_TOKEN")):
            access = self.access.model_copy(update={"token_variable": variable})
            self.scene.attempt(
                f"hub {name}",
                lambda access=access: open_source("hub", access, self.local).resolve("demo/refused", "main"),
            )
        self.scene.attempt("hub with credentials in its URL", lambda: connect(URL_WITH_CREDENTIALS, HUB_TOKEN_VARIABLE))

    def _store(self) -> None:
        (directory := self.place / "files").mkdir()
        (directory / "file.txt").write_text("content")
        store = open_store(self.in_s3)
        self.scene.attempt("S3 publish", lambda: store.publish("dataset", directory))
        self.scene.attempt("S3 fetch", lambda: store.fetch(store.publish("dataset", directory)))
        with _refusing(self.s3_server):
            self.scene.attempt("S3 that refuses", lambda: open_store(self.in_s3).publish("other", directory))
        with socket.socket() as nobody, pytest.MonkeyPatch.context() as patch:
            nobody.bind(("127.0.0.1", 0))
            patch.setattr("llm_pipeline.store.s3_blobs.ATTEMPTS", 1)
            dead = self.in_s3.model_copy(update={"endpoint": f"http://127.0.0.1:{nobody.getsockname()[1]}"})
            self.scene.attempt("S3 that is not there", lambda: open_store(dead).publish("dataset", directory))
        self.scene.attempt("store with credentials in its URI", lambda: open_store(STORE_WITH_CREDENTIALS))

    def _router(self) -> None:
        ports = iter(free_ports(10))
        place = EnvoyPlace(port=next(ports), admin_port=next(ports))
        names = ("http", "grpc", "metrics", "openai")
        servers = {slot: ServerPorts(**{name: next(ports) for name in names}) for slot in ("blue", "green")}
        state = self.scene.left / "router"
        try:
            start_router(place, servers, state, initial=all_to("blue", owner="test", epoch=0))
        finally:
            stop_router(state)

    def _start_commands(self) -> dict[str, subprocess.Popen[bytes]]:
        """Commands whose configuration holds what it must not, and an operator in Airflow's interpreter."""
        started = {}
        uses: dict[str, dict[str, object]] = {
            "plan, credentials in the hub's URL": {"hub": {"endpoint": URL_WITH_CREDENTIALS}},
            "plan, credentials in the store's URI": {"store": {"uri": STORE_WITH_CREDENTIALS}},
            "plan, credentials in the store's endpoint": {
                "store": {"uri": "s3://bucket", "endpoint": URL_WITH_CREDENTIALS}
            },
        }
        for name, deployment in uses.items():
            config = _write_configs(self.place / name.replace(" ", "-"), **deployment)
            started[name] = self._start(name, "-m", "llm_pipeline", "plan", str(config))
        request = self.request("published", self.in_s3).model_dump(mode="json")
        request["store"]["uri"] = STORE_WITH_CREDENTIALS
        (broken := self.place / "request.json").write_text(json.dumps(request))
        name = "stage, credentials in its request"
        started[name] = self._start(
            name, "-m", "llm_pipeline.stages", "download",
            "--request", str(broken), "--result", str(self.scene.left / "broken.json"),
        )  # fmt: skip
        (asked := self.place / "operated.json").write_text(self.request("operated", self.in_s3).model_dump_json())
        (deployment := self.place / "deployment.json").write_text(
            _deployment(self.scene.left, sys.executable, self.local, self.access).model_dump_json()
        )
        operator = str(_SCRIPTS / "run_operator.py")
        airflow = {"AIRFLOW_HOME": str(self.scene.left / "airflow")}
        started["operator"] = self._start("operator", operator, str(asked), str(deployment), **airflow)
        return started

    def _start(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.scene.left / f"{name.replace(' ', '-')}.output").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env=os.environ | environment,
            )


def _deployment(left: Path, python: str, store: StoreModel, hub: HubAccess) -> Deployment:
    return deployment_below(left, name="test", store=store, environments={"control": python}, hub=hub)


def _request(release_id: str, model: PinnedModel, store: StoreModel, hub: HubAccess, left: Path) -> StageRequest:
    config = download_config(model, ModelSource(id=model.id), hub)
    written = config.model_dump(mode="json")
    return request_below(left, "download", written, release_id=release_id, store=store)


def _write_configs(place: Path, **deployment: object) -> Path:
    """The committed release config of a deployment that differs in some fields; returns its path."""
    configs = Path(shutil.copytree(REPOSITORY / "configs", place / "configs"))
    path = configs / "deployments" / "local.yaml"
    here = {"environments": {"control": sys.executable, "model": sys.executable}}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | here | deployment))
    return configs / "releases" / "demo.yaml"


def _wait(runner: ProcessRunner, job: Job, *, kill: bool) -> None:
    deadline = time.monotonic() + 3000
    while runner.is_active(job):
        assert time.monotonic() < deadline, "the stage did not end"
        if kill and any("has the token" in line for line in runner.read_log(job, 0)[0]):
            process = detached.load(job.record)
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)


@contextmanager
def _refusing(server: Any) -> Iterator[None]:
    """While the block runs, the server wants to know the access key, and does not."""

    def allow(requests: str) -> None:
        address, plain = f"{server.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(address, data=requests.encode(), headers=plain)).close()

    allow("0")
    try:
        yield
    finally:
        allow("inf")


def _objects(server: Any, bucket: str) -> Iterator[tuple[str, bytes]]:
    client = server.client()
    for item in client.list_objects_v2(Bucket=bucket)["Contents"]:
        answer = client.get_object(Bucket=bucket, Key=item["Key"])
        yield item["Key"], answer["Body"].read() + json.dumps(answer, default=str).encode()


def test_every_part_ended_as_it_should(scene: Scene) -> None:
    assert scene.outcomes == {
        "published": "result",
        "operator": "0",
        "S3 publish": "result",
        "S3 fetch": "result",
        "refused": "RepositoryGated",
        "unsigned": "ConfigError",
        "crashed": "InternalError",
        "killed": "StageCrashed",
        "hub without a token": "RepositoryGated",
        "hub with another's token": "RepositoryGated",
        "hub with credentials in its URL": "ConfigError",
        "S3 that refuses": "Terminal",
        "S3 that is not there": "Transient",
        "store with credentials in its URI": "ConfigError",
        "plan, credentials in the hub's URL": "4",
        "plan, credentials in the store's URI": "4",
        "plan, credentials in the store's endpoint": "4",
        "stage, credentials in its request": "4",
    }, (scene.left / "operator.output").read_text()


@pytest.mark.parametrize("credential", CREDENTIALS.values(), ids=CREDENTIALS)
def test_a_credential_is_nowhere_but_in_the_environment_of_the_stages_that_need_it(
    scene: Scene, credential: Credential
) -> None:
    assert search(scene.left, credential.token) == []
    assert scene.watch.commands_with(credential.token) == []
    holders = scene.watch.environments_with(credential.token)
    assert any(f"{scene.left}/work/jobs/" in command for command in holders) is credential.for_stages
    assert any(seen.command.split(b"\0")[0].endswith(b"/envoy") for seen in scene.watch.seen)
    assert not [command for command in holders if "/envoy " in command], "the router faces the users"


def test_a_stage_that_leaks_is_found_wherever_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (left := tmp_path / "left").mkdir()
    monkeypatch.setenv(HUB_TOKEN_VARIABLE, HUB_TOKEN.token)
    store, hub = store_settings(uri=(left / "store").as_uri()), HubAccess(endpoint="http://hub.example")
    runner = ProcessRunner(
        _deployment(
            left, str(write_interpreter(tmp_path / "python", _SCRIPTS / "run_stage.py", REPOSITORY)), store, hub
        )
    )
    file = HubFile(path="model.safetensors", size=1, sha256="0" * 64)
    model = PinnedModel(id="demo/leaked", commit="0" * 40, files=(file,))
    with ProcessWatch() as watch:
        job = runner.submit(_request("leaked", model, store, hub, left), Placement(environment="control"))
        _wait(runner, job, kill=False)
    found = {line.partition(": ")[0] for line in search(left, HUB_TOKEN.token)}
    assert {
        "work/jobs/leaked/download/1/log.jsonl",
        "work/jobs/leaked/download/1/result.json",
        "store/releases/leaked/report.html",
        "store/releases/leaked/results/download.json",
    } <= found
    assert [command for command in watch.commands_with(HUB_TOKEN.token) if "time.sleep" in command]

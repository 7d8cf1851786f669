"""A Triton that runs already, with restricted model control, and gRPC behind TLS: the real one, as somebody runs it."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_pipeline.adapters.existing_triton.adapter import ADAPTER, ExistingServer
from llm_pipeline.adapters.existing_triton.model_control import ModelControl, open_model_control
from llm_pipeline.adapters.existing_triton.model_directory import LocalModelDirectory
from llm_pipeline.base.errors import ConfigError, IntegrityError, PipelineError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.serving.client import GenerationClient, GenerationRequest
from llm_pipeline.serving.control import Candidate, ServerControl, StagingSlot, endpoint_of, open_control
from llm_pipeline.serving.control.server import await_no_requests
from llm_pipeline.serving.identity import require_served
from llm_pipeline.serving.protocols import TritonProtocol
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy

pytestmark = pytest.mark.slow

SECRET = "5esame-0pen"


@dataclass(frozen=True)
class Somebodys:
    """Somebody's server: its endpoint, and the repository that it reads."""

    endpoint: Endpoint
    repository: Path


@pytest.fixture(scope="module")
def somebodys(module_tritonserver: Path, module_ports, tmp_path_factory) -> Iterator[Somebodys]:
    root = tmp_path_factory.mktemp("somebodys")
    key, certificate, ports = root / "key.pem", root / "certificate.pem", module_ports
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=triton", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    repository = root / "repository"
    repository.mkdir()
    command = [
        module_tritonserver, f"--model-repository={repository}", "--model-control-mode=explicit",
        *(f"--{name}-port={port}" for name, port in ports.by_name().items()),
        f"--http-restricted-api=model-repository:X-Admin={SECRET}",
        f"--grpc-restricted-protocol=model-repository:x-admin={SECRET}",
        "--grpc-use-ssl=1", f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}",
        "--disable-auto-complete-config", "--exit-timeout-secs=2",
    ]  # fmt: skip
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    endpoint = Endpoint(
        url=f"http://127.0.0.1:{ports.http}", grpc=f"127.0.0.1:{ports.grpc}",
        metrics_url=f"http://127.0.0.1:{ports.metrics}/metrics",
        header_variables={"X-Admin": "TEST_TRITON_ADMIN"}, ca_file=str(certificate),
    )  # fmt: skip
    yield Somebodys(endpoint, repository)
    process.terminate()
    process.wait(20)


@pytest.fixture(autouse=True)
def admin(somebodys: Somebodys, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelControl]:
    """What the server's owner does; the server is up, and empty again after the test."""
    monkeypatch.setenv("TEST_TRITON_ADMIN", SECRET)
    control = open_model_control(somebodys.endpoint, timeout_seconds=20)
    deadline = time.monotonic() + 60
    while True:
        try:
            control.versions("llm")
            break
        except Transient:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    yield control
    assert list(somebodys.repository.iterdir()) == []
    assert not any(version.ready for version in control.versions("llm"))


def control_of(somebodys: Somebodys, slot: StagingSlot, **changes: object) -> ServerControl:
    values = {"kind": "existing", "endpoint": somebodys.endpoint, "repository": str(somebodys.repository)}
    return open_control(ExistingServer(**{**values, **changes}), slot)


def answer(endpoint: Endpoint, path: str = "/v2/models/llm") -> int:
    """The version that answers."""

    async def ask() -> int:
        async with GenerationClient.of(endpoint, protocol=TritonProtocol(path), timeout_seconds=5) as client:
            generation = await client.generate(GenerationRequest("a b", 2))
            assert generation.ok, generation.error
            return generation.served_version

    return asyncio.run(ask())


@pytest.mark.parametrize(("control", "link"), [("http", False), ("grpc", True)])
def test_a_candidate_is_loaded_tells_its_digest_and_is_gone_after_the_stop(
    somebodys, staging_slot, make_repository, control, link
):
    first = control_of(somebodys, staging_slot, control=control, link=link)
    assert first.find() is None
    candidate = Candidate(make_repository(version=7), "c" * 64)
    server = first.start(candidate, wait_seconds=30)
    place = ExistingServer(kind="existing", endpoint=somebodys.endpoint, repository="/r")
    assert server.endpoint == somebodys.endpoint == endpoint_of(place, release_name="demo", target_name="cpu")
    require_served(server.endpoint, "c" * 64)
    with pytest.raises(IntegrityError):
        require_served(server.endpoint, "e" * 64)
    assert answer(server.endpoint) == 7
    files = somebodys.repository / "llm" / str(server.version)
    assert (files / "model.py").is_symlink() == link
    assert first.start(candidate, wait_seconds=30) == server, "it is served already"
    assert ADAPTER.probe(place) == f"{somebodys.endpoint.url} lets models be loaded, and has 1 versions of llm"
    with pytest.raises(SlotBusy, match="cccccccccccc"):
        first.start(Candidate(candidate.repository, "e" * 64), wait_seconds=30)

    another = control_of(somebodys, staging_slot, control=control, link=link)  # as a process that never saw the start
    assert another.find() == server
    assert await_no_requests(server.endpoint, 5)
    another.stop(drain_seconds=2)
    assert another.find() is None
    assert not files.exists()
    another.stop()


def test_versions_of_others_are_left_alone(somebodys, staging_slot, make_repository, admin):
    theirs = LocalModelDirectory(somebodys.repository / "llm", link=False)
    owned = make_repository("theirs", version=3)
    theirs.add(3, owned / "llm" / "1", {})
    (somebodys.repository / "llm" / "config.pbtxt").write_bytes((owned / "llm" / "config.pbtxt").read_bytes())
    admin.load("llm")
    before = admin.config("llm")
    candidate = Candidate(make_repository(version=9), "c" * 64)
    with pytest.raises(SlotBusy, match=r"serves versions \[3\]"):
        control_of(somebodys, staging_slot).start(candidate, wait_seconds=30)

    shared = control_of(somebodys, staging_slot, shared=True)
    server = shared.start(candidate, wait_seconds=30)
    assert server.version > 3
    assert answer(server.endpoint) == 9
    assert answer(server.endpoint, "/v2/models/llm/versions/3") == 3
    shared.stop()
    assert answer(server.endpoint) == 3
    assert {**admin.config("llm"), "version_policy": None} == {**before, "version_policy": None}

    other = make_repository("other")
    config = other / "llm" / "config.pbtxt"
    config.write_text(config.read_text().replace('"4096"', '"8"'))
    with pytest.raises(ConfigError, match="share one configuration, and parameters"):
        shared.start(Candidate(other, "e" * 64), wait_seconds=30)
    assert answer(server.endpoint) == 3

    admin.unload("llm")
    time.sleep(0.5)
    (somebodys.repository / "llm" / "config.pbtxt").unlink()
    theirs.remove(3)


def test_a_candidate_that_does_not_load_shows_why_and_leaves_nothing(somebodys, staging_slot, make_repository):
    control = control_of(somebodys, staging_slot)
    broken = Candidate(make_repository(broken="built for another GPU"), "c" * 64)
    with pytest.raises(ServerFailed, match="built for another GPU"):
        control.start(broken, wait_seconds=30)
    assert not (staging_slot.state / "existing.json").exists()
    assert control.find() is None


def test_a_stager_that_was_killed_while_it_copied_leaves_what_the_next_one_removes(
    somebodys, staging_slot, make_repository
):
    partial = somebodys.repository / "llm" / ".5.partial"
    partial.mkdir(parents=True)
    staging_slot.state.mkdir()
    (staging_slot.state / "existing.json").write_text('{"version": 5, "digest": "ee"}')
    control = control_of(somebodys, staging_slot)
    assert control.find() is None
    control.start(Candidate(make_repository(), "c" * 64), wait_seconds=30)
    assert not partial.exists()
    control.stop()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("value", ["wr0ng-value", "bad\nvalue", ""])
def test_who_is_not_let_in_is_told_so_without_a_word_of_the_secret(
    somebodys, staging_slot, make_repository, monkeypatch, caplog, *, protocol, value
):
    monkeypatch.setenv("TEST_TRITON_ADMIN", value)
    with pytest.raises(ConfigError, match=r"header_variables|TEST_TRITON_ADMIN") as refused:
        control_of(somebodys, staging_slot, control=protocol).start(
            Candidate(make_repository(), "c" * 64), wait_seconds=5
        )
    told = caplog.text + "".join(_chain(refused.value))
    assert SECRET not in told
    assert not value or value not in told


def test_a_certificate_that_is_not_trusted_is_no_answer(somebodys):
    endpoint = somebodys.endpoint.model_copy(update={"ca_file": "/etc/ssl/certs/ca-certificates.crt"})
    control = open_model_control(endpoint, "grpc", timeout_seconds=3)
    with pytest.raises(Transient, match="no server answers"):
        control.versions("llm")
    control.close()


def test_a_repository_that_is_not_here_is_named(somebodys, staging_slot, make_repository, tmp_path):
    control = control_of(somebodys, staging_slot, repository=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="nowhere"):
        control.start(Candidate(make_repository(), "c" * 64), wait_seconds=5)
    assert not (staging_slot.state / "existing.json").exists()


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{error!r} {error} {error.to_document() if isinstance(error, PipelineError) else ''}"
        error = error.__cause__ or error.__context__

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llm_pipeline.base import detached
from llm_pipeline.base.bounded_http import call
from llm_pipeline.base.confinement import landlock_version
from llm_pipeline.base.errors import ConfigError, Unsupported
from llm_pipeline.base.waiting import wait_until
from llm_pipeline.serving.triton_runtime import segments
from llm_pipeline.serving.triton_server import ServerFailed, SlotBusy, find_server, stop_server

pytestmark = pytest.mark.slow


def ask(port: int, text: str, tokens: int = 3) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("POST", "/v2/models/llm/generate", json.dumps({"text_input": text, "max_tokens": tokens}))
    return json.loads(connection.getresponse().read())


def runs(pid: int) -> bool:
    """A zombie, which only its parent can remove, does not run."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def group(pid: int) -> list[int]:
    return [process.pid for process in psutil.process_iter() if os.getpgid(process.pid) == pid and runs(process.pid)]


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_started_server_answers_is_found_again_and_leaves_nothing_when_stopped(slot, repository, tmp_path):
    before = files(repository)
    slot.state = tmp_path / "é \"'$HOME; #(x" / "my slot"  # no shell would take it for one word
    server = slot.start()
    assert ask(server.ports.http, "a b c d")["text_output"] == " a b c"
    assert find_server(slot.state) == slot.start() == server
    said = json.loads(call(f"{server.http_url}/v2", seconds=5).text)
    assert said["name"] == "llm_pipeline:" + "d" * 64
    assert segments(slot.state), "its shared memory carries its own prefix"
    slot.stop()
    assert find_server(slot.state) is None
    assert not server.alive
    assert group(server.pid) == []
    assert segments(slot.state) == []
    assert files(repository) == before, "the repository is an artifact: not even bytecode is added"


def test_a_slot_that_serves_another_repository_or_in_another_environment_is_refused_and_names_it(slot, tmp_path):
    server = slot.start()
    other = tmp_path / "other"
    other.mkdir()
    (other / "llm").symlink_to(slot.repository / "llm")
    for changes in ({"repository": other}, {"environment": {"TOY_STEP_SECONDS": "1"}}):
        with pytest.raises(SlotBusy, match=f"{server.ports.http}.*pid {server.pid}.*{slot.repository}"):
            slot.start(**changes)
    assert server.alive


def test_a_taken_port_is_refused_before_the_start_with_its_owner(slot):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", slot.ports.grpc))
        taken.listen()
        with pytest.raises(ConfigError, match=rf"grpc port {slot.ports.grpc} is in use by pid {os.getpid()} \("):
            slot.start()
    assert not (slot.state / "server.log").exists()


def test_a_model_that_raises_at_its_load_shows_the_exception_and_the_slot_starts_again(slot, repository):
    model = repository / "llm" / "1" / "model.py"
    code = model.read_text()
    model.write_text(
        code.replace("kinds =", "raise RuntimeError('rank0.engine was built for another GPU')\n        kinds =")
    )
    with pytest.raises(ServerFailed, match=r"rank0\.engine was built for another GPU") as failure:
        slot.start()
    assert "model.py" in str(failure.value), "and where it was raised"
    assert find_server(slot.state) is None
    assert segments(slot.state) == []
    model.write_text(code)
    assert slot.start().ready


@pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
def test_a_model_reads_nothing_beside_its_repository_and_the_software(slot, repository, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "credentials").write_text("secret")
    monkeypatch.setenv("HOME", str(home))
    code = repository / "llm" / "1" / "model.py"
    code.write_text(
        code.read_text().replace(
            "def initialize(self, args):",
            f"""def initialize(self, args):
        open(os.path.join(args["model_repository"], "config.pbtxt")).close()
        own = os.path.expanduser("~/compiled")
        open(own, "w").close()
        open(own).close()
        open({str(home / "credentials")!r})""",
        )
    )
    with pytest.raises(ServerFailed, match=rf"Permission denied: '{home}/credentials'"):
        slot.start()


def test_a_killed_server_leaves_orphans_that_the_next_start_removes(slot):
    server = slot.start()
    stubs = [pid for pid in group(server.pid) if pid != server.pid]
    left = segments(slot.state)
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(server.pid, 0)
    assert find_server(slot.state) is None
    assert stubs
    assert left
    again = slot.start()
    assert again.pid != server.pid
    assert not any(runs(stub) for stub in stubs)
    assert not any(segment.exists() for segment in left)
    assert ask(again.ports.http, "x")["text_output"] == " x x x"


def test_stopping_one_slot_does_not_touch_anothers_shared_memory(slot, tmp_path, repository):
    one = slot.start()
    other = type(slot)(tmp_path / "other_slot", repository)
    try:
        other.start()
        stop_server(other.state)
        assert segments(slot.state)
        assert ask(one.ports.http, "still here", 2)["text_output"] == " still here"
    finally:
        other.stop()


def test_a_server_whose_record_says_nothing_is_stopped_all_the_same(tmp_path):
    """A package of another version wrote it, or a disk lost it."""
    process = detached.start("server", ["sleep", "600"], tmp_path / "process.json", log=tmp_path / "server.log")
    (tmp_path / "server.json").write_text('{"repository": "/r"}')
    with pytest.raises(ConfigError, match="not a server record"):
        find_server(tmp_path)
    assert stop_server(tmp_path, drain_seconds=1)
    assert not process.session_alive
    assert find_server(tmp_path) is None
    stop_server(tmp_path / "never")


def test_draining_lets_a_request_in_flight_end(slot):
    server = slot.start(environment={"TOY_STEP_SECONDS": "0.05"})
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(server.ports.http)], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout.readline().strip() == "sent"
    time.sleep(0.5)  # the server has read it
    slot.stop(drain_seconds=10)
    assert client.communicate(timeout=30)[0].strip() == "40"


_CLIENT = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/v2/models/llm/generate", json.dumps({"text_input": "w", "max_tokens": 40}))
print("sent", flush=True)
print(json.loads(connection.getresponse().read())["output_tokens"])
"""


def test_an_interpreter_without_numpy_1_is_refused_before_the_start(slot, tmp_path):
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    with pytest.raises(Unsupported, match=r"numpy is missing.*numpy==1\.26\.4"):
        slot.start(python=environment / "bin" / "python")
    site = next(environment.glob("lib/python3*/site-packages"))
    (site / "numpy-2.2.0.dist-info").mkdir()
    (site / "numpy-2.2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.2.0\n")
    with pytest.raises(Unsupported, match=r"numpy is 2\.2\.0"):
        slot.start(python=environment / "bin" / "python")


def test_an_interpreter_without_a_shared_libpython_is_refused_before_the_start(slot, tmp_path):
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\necho \'{"version": "3.11", "library_directory": "/usr/lib", "library": "", "numpy": null, '
        '"places": []}\'\n'
    )
    fake.chmod(0o755)
    with pytest.raises(Unsupported, match="no shared libpython"):
        slot.start(python=fake)


def test_a_missing_wheel_and_a_repository_without_the_model_are_named(slot, tmp_path):
    with pytest.raises(ConfigError, match=r"no tritonserver here.*nvidia-pytriton.*/opt/tritonserver"):
        slot.start(triton_home=tmp_path)
    with pytest.raises(ConfigError, match="no model 'llm'"):
        slot.start(repository=tmp_path)


def test_a_server_listens_on_loopback_sees_its_own_gpus_and_has_nothing_of_our_environment(slot, monkeypatch):
    for name, value in {"HF_TOKEN": "secret", "PYTHONPATH": "/somewhere", "CUDA_VISIBLE_DEVICES": "1"}.items():
        monkeypatch.setenv(name, value)
    server = slot.start(ports=slot.ports.model_copy(update={"gpus": (2, 3)}))
    environment = psutil.Process(server.pid).environ()
    assert not {"HF_TOKEN", "PYTHONPATH"} & environment.keys()
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert wait_until(lambda: len(_listening(server.pid)) == 3, 60)  # metrics: a little after the model is ready
    assert {address.ip for address in _listening(server.pid)} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    ports = server.ports
    assert {address.port for address in _listening(server.pid)} == {ports.http, ports.grpc, ports.metrics}
    slot.stop()
    assert psutil.Process(slot.start().pid).environ()["CUDA_VISIBLE_DEVICES"] == "1", "of its worker, without its own"


def _listening(pid: int) -> set:
    connections = psutil.Process(pid).net_connections("tcp")
    return {connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN}

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from load_windows import answered, records
from openai_server import KEY, OpenAiDouble
from scripted_server import ScriptedServer
from waiting import until

from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.config.endpoint import Endpoint
from llm_pipeline.loadtest.measure import LoadClient, client_lag_seconds, processes_for, rate_share
from llm_pipeline.loadtest.records import Fault, Records
from llm_pipeline.loadtest.traffic import LoadRequest, Traffic


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ScriptedServer) -> Iterator[LoadClient]:
    with LoadClient(Endpoint(url=server.url), processes=1, timeout_seconds=1.0) as running:
        yield running


def traffic(prompts: Sequence[str], *, apart: float = 0.005, **asked: object) -> Traffic:
    requests = [LoadRequest(prompt, 4, **asked) for prompt in prompts]
    arrivals = np.arange(len(requests)) * apart
    return Traffic(requests, len(requests) * apart, arrivals)


def one_by_one(prompts: Sequence[str]) -> Traffic:
    return Traffic([LoadRequest(prompt, 4) for prompt in prompts], 30.0, concurrency=1)


def faults(records: Records) -> list[Fault]:
    return [Fault(fault) for fault in records["fault"]]


def test_every_scheduled_request_is_sent_at_its_time_and_recorded(client: LoadClient):
    scheduled = traffic([f"prompt {number}" for number in range(200)])
    measured = client.send(scheduled)
    records = measured.records
    assert records["number"].tolist() == list(range(200))
    assert records["arrives_at"].tolist() == scheduled.arrivals.tolist()
    assert bool(records.answered.all())
    assert set(records["output_tokens"]) == set(records["asked_tokens"]) == {4}
    assert set(records["input_tokens"]) == {5}
    lags, first, total = (records[f"{name}_seconds"] for name in ("lag", "first_token", "total"))
    assert bool((lags >= 0).all())
    assert np.median(lags) < 0.1
    assert bool(((lags < first) & (first <= total)).all())
    assert measured.window_seconds == pytest.approx(1.0, abs=0.3)


def test_an_open_loop_waits_for_nobody_and_charges_a_stall_to_all_that_queued_meanwhile():
    """Coordinated omission: a closed loop would have recorded one slow request here, of about 80."""
    with (
        ScriptedServer(stall_at=40, stall_seconds=0.5) as stalling,
        LoadClient(Endpoint(url=stalling.url), processes=1) as client,
    ):
        records = client.send(traffic([f"prompt {number}" for number in range(160)])).records
    stalled = records.where(records["number"] == 39)
    queued = records.where((records["arrives_at"] > 0.2) & (records["arrives_at"] < 0.6))
    assert stalled["total_seconds"][0] > 0.45
    assert len(queued) > 70
    owed = stalled["arrives_at"][0] + 0.5 - queued["arrives_at"]
    assert bool((queued["first_token_seconds"] >= owed - 0.02).all()), "each waited until the stall was over"
    assert np.median(queued["lag_seconds"]) < 0.1, "and was sent in time itself"


def test_each_fault_has_its_kind_and_its_first_words(client: LoadClient):
    expected = {
        "fine": Fault.NONE,
        "fine, bytewise": Fault.NONE,
        "fine, empty first": Fault.NONE,
        "refuse=503": Fault.SHED,
        "refuse=500": Fault.REFUSED,
        "break": Fault.CUT,
        "nonsense": Fault.MALFORMED,
        "hang": Fault.TIMEOUT,
    }
    records = client.send(traffic(list(expected))).records
    assert dict(zip(expected, faults(records), strict=True)) == expected
    assert records["status"].tolist() == [200, 200, 200, 503, 500, 200, 0, 0]
    assert records.details[Fault.SHED] == "HTTP 503: no place"
    assert records.details[Fault.TIMEOUT] == "no complete answer within 1 s"
    assert 1.0 <= records["total_seconds"][-1] < 3


def test_silences_are_timed_and_a_user_who_leaves_closes_the_connection_and_is_not_judged(
    server: ScriptedServer, client: LoadClient
):
    departures = server.departures
    whole = client.send(traffic(["pause=0.05"], apart=0.1)).records
    assert 0.05 <= whole["longest_gap_seconds"][0] < 1
    assert 0.04 < whole.time_per_output_token_seconds[0] <= whole["longest_gap_seconds"][0]
    records = client.send(traffic(["pause=0.02"], cancel_after_tokens=2)).records
    assert faults(records) == [Fault.LEFT]
    assert records["output_tokens"][0] == 2
    assert len(records.judged) == 0
    until(lambda: server.departures > departures)


def test_connections_are_kept_and_one_that_was_closed_while_idle_is_no_fault_but_one_within_an_answer_is(
    server: ScriptedServer,
):
    refused, opened = server.closed_when_asked, server.connections
    with LoadClient(Endpoint(url=server.url), processes=1) as client:
        for _ in range(2):
            client.send(one_by_one(["a"] * 10))
        assert server.connections == opened + 1
        records = client.send(one_by_one(["first", "reused", "reused"])).records
        assert faults(client.send(one_by_one(["break", "break"])).records) == [Fault.CUT] * 2
        assert bool(client.send(one_by_one(["close"] * 5)).records.answered.all())
    assert faults(records) == [Fault.NONE] * 3
    assert server.closed_when_asked - refused == 2, "each was sent again, on a new connection"
    assert records["number"].tolist() == [0, 1, 2], "and stands in the record once"


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"])
def test_a_server_that_closes_every_connection_unanswered_is_a_fault_of_the_moment(said: bytes):
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor() as threads:

        def hang_up() -> None:
            for _ in range(9):
                connection, _ = listening.accept()
                with connection:
                    if connection.recv(65_536):
                        connection.sendall(said)

        threads.submit(hang_up)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            with LoadClient(Endpoint(url=url), processes=1, timeout_seconds=5) as client, pytest.raises(Transient):
                client.send(one_by_one(["a"] * 4))
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def test_users_of_a_closed_loop_send_when_their_last_answer_is_there(client: LoadClient):
    loop = Traffic([LoadRequest("pause=0.005", 4)] * 400, 0.5, concurrency=3)
    records = client.send(loop).records
    assert 6 < len(records) < 400
    assert bool((records["arrives_at"] < 0.5).all())
    assert client_lag_seconds(records) < 0.1
    ends = records["arrives_at"] + records["total_seconds"]
    live = [np.sum((records["arrives_at"] <= start) & (ends > start)) for start in records["arrives_at"]]
    assert max(live) == 3


def test_several_processes_record_what_one_does(server: ScriptedServer):
    scheduled = traffic([f"prompt {number}" for number in range(99)])
    with LoadClient(Endpoint(url=server.url), processes=2) as client:
        before = len(server.seen)
        records = client.send(scheduled).records
        assert len(client.processes) == 2
        users = client.send(Traffic([LoadRequest("a", 4)] * 10, 5.0, concurrency=2)).records
    assert records["number"].tolist() == list(range(99))
    assert records["arrives_at"].tolist() == scheduled.arrivals.tolist()
    assert bool(records.answered.all())
    assert sorted(asked["prompt"] for asked in server.seen[before : before + 99]) == sorted(
        request.prompt for request in scheduled.requests
    )
    assert sorted(users["number"]) == list(range(10))
    assert bool((np.diff(users["arrives_at"]) >= 0).all())


def test_a_client_process_that_dies_voids_its_window(server: ScriptedServer):
    with LoadClient(Endpoint(url=server.url), processes=2) as client:
        kill = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {client.processes[1].pid}"])
        started = time.monotonic()
        with pytest.raises(Transient, match="client process ended"):
            client.send(traffic(["a"] * 2000, apart=0.03))
        kill.wait()
        assert time.monotonic() - started < 30, "at once, not when the window is over"


def test_client_processes_die_with_their_parent_however_it_ends(server: ScriptedServer):
    script = (
        "import sys, numpy as np\n"
        "from llm_pipeline.config.endpoint import Endpoint\n"
        "from llm_pipeline.loadtest.measure import LoadClient\n"
        "from llm_pipeline.loadtest.traffic import LoadRequest, Traffic\n"
        f"with LoadClient(Endpoint(url={server.url!r}), processes=2) as client:\n"
        "    print(*(one.pid for one in client.processes), flush=True)\n"
        "    client.send(Traffic([LoadRequest('a', 4)] * 2, 30.0, np.array([0.0, 30.0])))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert all(psutil.pid_exists(pid) for pid in pids)
    time.sleep(0.3)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_nobody_at_the_address_is_said_at_once():
    message = "none of 3 requests reached a server: .*Connect call failed"
    with LoadClient(Endpoint(url="http://127.0.0.1:9"), processes=1) as client, pytest.raises(Transient, match=message):
        client.send(traffic(["a"] * 3))


def test_a_key_reaches_the_server_but_no_command_line_and_no_record_though_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TEST_KEY", "n0t-the-right-one")
    with OpenAiDouble(key=KEY) as server:
        endpoint = Endpoint(url=server.url, openai_model="llm", api_key_variable="TEST_KEY")
        with LoadClient(endpoint, processes=1) as client:
            assert "n0t-the" not in " ".join(psutil.Process(client.processes[0].pid).cmdline())
            details = client.send(traffic(["a"])).records.details
        assert server.heads == ["Bearer n0t-the-right-one"]
    assert details == {Fault.REFUSED: "HTTP 401: Incorrect API key provided: ***"}


def test_tls_is_checked_against_the_named_certificates(tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=test"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with ScriptedServer(tls=context) as secure:
        with LoadClient(Endpoint(url=secure.url, ca_file=str(certificate)), processes=1) as client:
            assert bool(client.send(traffic(["a", "b"])).records.answered.all())
        with (
            LoadClient(Endpoint(url=secure.url), processes=1) as client,
            pytest.raises(Transient, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.send(traffic(["a"]))


def test_processes_follow_the_rate_up_to_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))

    def at(rate: float, tokens: int) -> int:
        requests = [LoadRequest("p", tokens)] * int(rate)
        return processes_for(Traffic(tuple(requests), 1.0, arrivals=np.linspace(0, 1, len(requests))))

    assert (at(50, 16), at(500, 256), at(5000, 256)) == (1, 4, 4)
    assert processes_for(Traffic((), 1.0, concurrency=300)) == 3


def test_the_clients_own_delay_is_measured():
    late = records(answered(n, arrives_at=n * 0.1, lag_seconds=max(0.0, (n - 89) * 0.1)) for n in range(100))
    assert client_lag_seconds(late) == pytest.approx(0.9)
    assert rate_share(late) == pytest.approx(9.9 / 10.9)
    assert (client_lag_seconds(records([])), rate_share(records([]))) == (0.0, 1.0)


def test_a_client_without_its_packages_is_bad_input_and_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "uvloop.py").write_text("raise ModuleNotFoundError('No module named uvloop', name='uvloop')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    client = LoadClient(Endpoint(url="http://127.0.0.1:1"), processes=1)
    with pytest.raises(ConfigError, match="cannot run here") as refused, client:
        pass
    assert "pip install 'llm-pipeline[control]'" in refused.value.hint

"""A store in S3 whose answers, or whose appetite for requests, drip."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bare_socket import Script, certificate, says, serving, takes_bytes, tunnels
from s3_faults import Faults, always, dripping, is_a, rewritten

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.bounded_aws import AnswerLimits
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.config.store import StoreModel, store_settings
from llm_pipeline.store import s3_answers, s3_bucket, s3_session
from llm_pipeline.store.s3_bucket import Bucket, S3Part, S3Upload

POINTERS = "pointers/m/cpu.json"
PAUSE = 0.02
HELD = 0.1
"""How long a dripping server holds a caller, per attempt."""

ATTEMPTS = 3
TRIES = range(ATTEMPTS, ATTEMPTS**2 + 1)
"""On a busy host the head of an answer may be late, too: then the client tries again within one attempt of ours."""
STRICT = AnswerLimits(headers_seconds=HELD, whole_seconds=HELD, window_seconds=HELD)


@pytest.fixture
def limited(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[AnswerLimits], None]:
    """Sets the limits of the clients that are made from now on."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_given: 0.001)
    monkeypatch.setattr(s3_answers, "_BACKOFF_UNIT_SECONDS", 0.001)
    for module in (s3_answers, s3_bucket):
        monkeypatch.setattr(module, "ATTEMPTS", ATTEMPTS)
    monkeypatch.setattr(s3_session, "_ATTEMPTS", ATTEMPTS)

    def limit(limits: AnswerLimits) -> None:
        monkeypatch.setattr(s3_bucket, "connect", lambda config: s3_session.connect(config, limits))

    return limit


@pytest.fixture
def config(s3_config: StoreModel, proxy: Faults) -> StoreModel:
    proxy.heal()
    return s3_config.model_copy(update={"endpoint": proxy.endpoint})


@pytest.fixture
def artifact(config: StoreModel, tmp_path: Path) -> Any:
    directory = tmp_path / "weights"
    directory.mkdir()
    (directory / "model.bin").write_bytes(os.urandom(3_000_000))
    return S3Store(config).publish("checkpoint", directory)


@pytest.mark.parametrize("act", ["read", "write"])
def test_a_head_that_drips_ends_as_an_error_that_says_so(
    config: StoreModel, proxy: Faults, limited: Any, act: str
) -> None:
    limited(STRICT)
    store = S3Store(config)
    proxy.inject(dripping(PAUSE, head=True), when=always, times=1000)
    with pytest.raises(Transient, match=r"the head of the answer was not complete after 0\.1 s.*store\.endpoint"):
        store.read_document(POINTERS) if act == "read" else store.write_document(POINTERS, {}, None)


@pytest.mark.parametrize("there", [True, False], ids=["object", "refusal"])
def test_a_document_that_drips_ends_as_an_error_that_says_so(
    config: StoreModel, proxy: Faults, limited: Any, *, there: bool
) -> None:
    if there:
        S3Store(config).write_document(POINTERS, {"n": "x" * 1000}, None)
    limited(STRICT)
    proxy.inject(dripping(PAUSE), when=is_a("GET", POINTERS), times=1000)
    with pytest.raises(Transient, match=r"fewer than 10000 a second|not complete after 0\.1 s"):
        S3Store(config).read_document(POINTERS)
    assert len(proxy.seen(is_a("GET", POINTERS))) in TRIES


def test_a_listing_that_drips_ends_as_an_error_that_says_so(
    config: StoreModel, proxy: Faults, artifact: Any, limited: Any
) -> None:
    limited(STRICT)
    proxy.inject(dripping(PAUSE), when=is_a("GET", list_type="2"), times=1000)
    with pytest.raises(Transient, match=r"the answer was not complete after 0\.1 s"):
        list(S3Store(config).artifacts())


def test_an_answer_that_drips_once_is_asked_for_again(
    config: StoreModel, proxy: Faults, artifact: Any, limited: Any
) -> None:
    limited(AnswerLimits(headers_seconds=5.0, whole_seconds=5.0, window_seconds=1.0))
    proxy.inject(dripping(PAUSE), when=is_a("GET", "model.bin"))
    assert (S3Store(config).fetch(artifact) / "model.bin").stat().st_size == 3_000_000
    assert proxy.committed


def test_a_file_that_drips_is_given_up_although_each_attempt_gets_further(
    config: StoreModel, proxy: Faults, artifact: Any, limited: Any
) -> None:
    (item,) = [item for item in Bucket(config).list("artifacts/") if item.name.endswith("model.bin")]
    limited(AnswerLimits(window_seconds=HELD))
    proxy.inject(dripping(PAUSE, at_once=300_000), when=is_a("GET", "model.bin"), times=1000)
    with pytest.raises(Transient, match=r"fewer than 10000 a second|not complete after"):
        list(Bucket(config).stream(item))
    assert len(proxy.seen(is_a("GET", "model.bin"))) in TRIES


def test_a_file_may_take_longer_than_any_other_answer(
    config: StoreModel, proxy: Faults, artifact: Any, limited: Any
) -> None:
    (item,) = [item for item in Bucket(config).list("artifacts/") if item.name.endswith("model.bin")]
    limited(AnswerLimits(whole_seconds=0.001, bytes_per_second=0, window_seconds=0.001))
    proxy.inject(dripping(PAUSE, at_once=2_999_990), when=is_a("GET", "model.bin"))
    assert sum(len(chunk) for chunk in Bucket(config).stream(item)) == 3_000_000
    assert len(proxy.seen(is_a("GET", "model.bin"))) == 1


def test_an_answer_without_end_is_left_at_its_limit(
    config: StoreModel, proxy: Faults, artifact: Any, limited: Any
) -> None:
    limited(AnswerLimits(whole_bytes=100_000))
    proxy.inject(rewritten(rb"(?s)^.*$", b" " * 200_000), when=is_a("GET", list_type="2"), times=1000)
    with pytest.raises(Transient, match="more than 100000 bytes"):
        list(S3Store(config).artifacts())


def test_a_document_that_no_store_writes_is_not_read(
    config: StoreModel, limited: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(config)
    store.write_document(POINTERS, {"n": "x" * 1000}, None)
    monkeypatch.setattr(s3_bucket, "LONGEST_DOCUMENT_BYTES", 1000)
    with pytest.raises(IntegrityError, match="more than 1000 bytes"):
        store.read_document(POINTERS)


HEAD = b"HTTP/1.1 200 OK\r\n"


def put(endpoint: str, size: int) -> None:
    Bucket(store_settings(uri="s3://bucket/prefix", endpoint=endpoint)).put("x", bytes(size))


@pytest.mark.parametrize(
    ("script", "size", "said"),
    [
        (takes_bytes(1, pause=PAUSE), 6_000_000, r"fewer than 10000 a second|not complete after"),
        (takes_bytes(0, pause=PAUSE), 6_000_000, r"fewer than 10000 a second|not complete after"),
        (takes_bytes(65536, pause=0.0), 10, "the head of the answer was not complete"),
        (says(b"HTTP/1.1 100 Continue\r\n", b"X", pause=PAUSE, repeat_last=True), 10, "the head of the answer"),
        (says(b"HTTP/1.1 100 Continue\r\n"), 10, "no answer from S3"),
        (says(b"HTTP/1.1 100 Continue\r\n\r\n", pause=PAUSE, repeat_last=True), 10, "the head of the answer"),
    ],
    ids=["drips", "takes nothing", "says nothing", "dripping continue", "broken continue", "continues for ever"],
)
def test_an_upload_that_gets_nowhere_ends(limited: Any, script: Script, size: int, said: str) -> None:
    limited(STRICT)
    with serving(script) as endpoint, pytest.raises(Transient, match=said):
        put(endpoint, size)


def test_an_upload_may_take_longer_than_any_answer(limited: Any) -> None:
    limited(AnswerLimits(whole_seconds=0.001, bytes_per_second=0, window_seconds=0.001))
    taken: list[int] = []

    def script(connection: Any, over: Any) -> None:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while sum(taken) < 6_000_000:
            taken.append(len(connection.recv(500_000)))
            over.wait(PAUSE if len(taken) < 10 else 0.0)
        connection.sendall(HEAD + b'ETag: "x"\r\nContent-Length: 0\r\n\r\n')

    with serving(script) as endpoint:
        put(endpoint, 6_000_000)
    assert sum(taken) > 6_000_000


def test_the_parts_of_an_upload_may_be_joined_for_longer(limited: Any) -> None:
    limited(AnswerLimits(whole_seconds=0.001))
    begun, joined = b'<?xml version="1.0"?>', b'<Result><ETag>"x"</ETag></Result>'
    head = HEAD + b"Content-Length: %d\r\n\r\n" % (len(begun) + 5 + len(joined))
    with serving(says(head + begun, *[b" "] * 5, joined, pause=PAUSE)) as endpoint:
        bucket = Bucket(store_settings(uri="s3://bucket/prefix", endpoint=endpoint))
        assert bucket.complete_upload(S3Upload("x", "1"), [S3Part(1, 1, "x", "x")], {}) == '"x"'


def test_a_server_behind_tls_is_held_to_it_too(limited: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(STRICT)
    inside, trusted = certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    with (
        serving(says(HEAD, b"X", pause=PAUSE, repeat_last=True), tls=inside) as endpoint,
        pytest.raises(Transient, match="the head of the answer"),
    ):
        put(endpoint, 10)


def test_a_server_behind_a_proxy_s_tunnel_takes_requests(
    limited: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(AnswerLimits())
    inside, trusted = certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    answer = says(HEAD + b'ETag: "x"\r\nContent-Length: 0\r\n\r\n')
    with serving(tunnels(answer, inside)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        put("https://127.0.0.1:1", 10)


def test_a_proxy_that_drips_is_left_too(limited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(STRICT)
    with serving(says(HEAD, b"X", pause=PAUSE, repeat_last=True)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(Transient, match="the head of the answer"):
            put("https://192.0.2.1", 10)

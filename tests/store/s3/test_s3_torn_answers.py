"""A store in S3 whose answers break off, are cut short, or say an error with the status of a success."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from s3_faults import Faults, always, error, is_a, rewritten, torn, truncated

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.errors import Terminal

POINTERS = "pointers/m/cpu.json"


@pytest.mark.parametrize("seed", range(2))
def test_rounds_in_which_answers_are_reset_now_and_then_all_succeed(
    store: S3Store, faults: Faults, weights: Path, seed: int
) -> None:
    faults.inject(torn(1 / 30, random.Random(seed)), when=always, times=100_000)  # noqa: S311 - a test's dice
    ref = store.publish("checkpoint", weights)
    assert (store.fetch(ref) / "model.bin").read_bytes() == (weights / "model.bin").read_bytes()
    revision = store.write_document(POINTERS, {"n": 1}, None)
    store.write_document(POINTERS, {"n": 2}, revision)
    assert store.list_documents("pointers") == [POINTERS]
    assert [stored.ref for stored in store.artifacts()] == [ref]
    store.remove(ref)
    assert not store.exists(ref)


def test_a_refusal_whose_body_is_reset_is_asked_for_again(store: S3Store, faults: Faults) -> None:
    faults.inject(truncated, when=is_a("GET", POINTERS), times=2)
    assert store.read_document(POINTERS) is None
    assert len(faults.seen(is_a("GET", POINTERS))) == 3


@pytest.mark.parametrize("served", [False, True])
def test_an_error_with_the_status_of_a_success_completes_no_upload(
    store: S3Store, faults: Faults, weights: Path, *, served: bool
) -> None:
    faults.inject(error(200, "InternalError", served=served), when=is_a("POST", "model.bin", uploadId=""), times=2)
    ref = store.publish("checkpoint", weights)
    assert faults.committed
    assert store.verify(ref) == []


def test_what_s3_is_too_busy_to_remove_is_removed_later(store: S3Store, faults: Faults, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    _, prefix = store._blobs._config.bucket_and_prefix
    key = f"{prefix}/artifacts/{ref.kind}/{ref.digest}/model.bin"
    busy = f"<DeleteResult><Error><Key>{key}</Key><Code>SlowDown</Code></Error></DeleteResult>".encode()
    faults.inject(rewritten(rb"(?s)^.+$", busy), when=is_a("POST", delete=""))
    store.remove(ref)
    assert len(faults.seen(is_a("POST", delete=""))) == 2
    assert list(store._blobs.list(f"artifacts/{ref.kind}")) == []


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (400, "ExpiredToken", "have expired.*get new ones"),
        (403, "RequestTimeTooSkewed", "set this machine's clock"),
        (403, "InvalidAccessKeyId", "S3 refused.*AWS_ACCESS_KEY_ID"),
    ],
)
def test_credentials_and_clocks_that_time_does_not_mend_are_terminal_and_say_what_to_do(
    store: S3Store, faults: Faults, status: int, code: str, said: str
) -> None:
    faults.inject(error(status, code), when=always, times=1000)
    with pytest.raises(Terminal, match=said):
        store.read_document(POINTERS)

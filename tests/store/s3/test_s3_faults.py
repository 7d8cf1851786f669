"""A store in S3 while HTTP goes wrong: every kind of fault at every kind of request."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from s3_faults import Fault, Faults, after, always, damaged, error, is_a, reset_after, reset_before, truncated

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.errors import IntegrityError, Transient
from llm_pipeline.config.store import StoreModel
from llm_pipeline.store.artifact_store import Conflict

POINTERS = "pointers/m/cpu.json"
PART = 1000

ANYWHERE = {
    "reset before": reset_before,
    "reset after": reset_after,
    "500": error(500, "InternalError"),
    "500, yet served": error(500, "InternalError", served=True),
    "SlowDown": error(503, "SlowDown"),
}
CONDITIONAL = {"409": error(409, "ConditionalRequestConflict"), "409 abort": error(409, "OperationAborted")}
WRITES = [
    is_a("PUT", "config.json"),
    is_a("POST", "model.bin", uploads=""),
    is_a("PUT", "model.bin", partNumber="1"),
    is_a("POST", "model.bin", uploadId=""),
    is_a("PUT", "_MANIFEST.json"),
    is_a("PUT", "_COMPLETE.json"),
]
READS = [
    is_a("GET", "_COMPLETE.json"),
    is_a("GET", "_MANIFEST.json"),
    is_a("GET", list_type="2"),
    is_a("GET", "model.bin"),
    is_a("GET", "config.json"),
]


@pytest.mark.parametrize("fault", (ANYWHERE | CONDITIONAL).values(), ids=ANYWHERE | CONDITIONAL)
def test_a_publication_survives_a_fault_at_each_of_its_writes(
    store: S3Store, faults: Faults, weights: Path, fault: Fault
) -> None:
    for when in WRITES[-2:] if fault in CONDITIONAL.values() else WRITES:
        faults.inject(fault, when=when)
    ref = store.publish("checkpoint", weights)
    assert faults.committed
    assert store.verify(ref) == store.check(ref) == []
    assert all(left.transfer for left in store.leftovers(timedelta(seconds=-5)))


CUT = ANYWHERE | {"truncated": truncated, "closed early": partial(truncated, reset=False)}


@pytest.mark.parametrize("fault", CUT.values(), ids=CUT)
def test_reading_survives_faults_at_each_of_its_reads(
    store: S3Store, faults: Faults, weights: Path, fault: Fault
) -> None:
    ref = store.publish("checkpoint", weights)
    for read in (store.fetch, store.verify, store.check):
        faults.heal()
        for when in READS:
            faults.inject(fault, when=when, times=2)
        read(ref)
        assert faults.committed or read == store.check
    assert store.verify(ref) == []
    assert (store.fetch(ref) / "model.bin").read_bytes() == (weights / "model.bin").read_bytes()


@pytest.mark.parametrize("fault", [reset_before, error(503, "SlowDown")], ids=["reset", "SlowDown"])
def test_a_server_that_stays_away_is_a_transient_error_after_a_bounded_number_of_attempts(
    store: S3Store, faults: Faults, fault: Fault
) -> None:
    faults.inject(fault, when=always, times=1000)
    with pytest.raises(Transient):
        store.read_document(POINTERS)
    assert 3 <= len(faults.requests) <= 10


def test_bytes_that_are_wrong_twice_make_the_artifact_incomplete(store: S3Store, faults: Faults, weights: Path) -> None:
    ref = store.publish("checkpoint", weights)
    faults.inject(damaged, when=is_a("GET", "model.bin"), times=8)
    with pytest.raises(IntegrityError, match=r"model\.bin: changed: SHA-256"):
        store.fetch(ref)
    assert not store.exists(ref)
    assert store.publish("checkpoint", weights) == ref
    store.fetch(ref)


def test_an_object_replaced_while_it_is_read_gives_no_mixture(
    store: S3Store, faults: Faults, weights: Path, put: Callable[..., object]
) -> None:
    ref, other = store.publish("checkpoint", weights), os.urandom(3 * PART + 500)
    replace = after(lambda: put(ref, "model.bin", other))
    faults.inject(replace, when=is_a("GET", "model.bin"), skip=1)
    with pytest.raises(IntegrityError, match=r"model\.bin: changed"):
        store.fetch(ref)


LOST = ANYWHERE | {"409": CONDITIONAL["409"]}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_a_document_whose_write_lost_its_answer_is_written_once(store: S3Store, faults: Faults, fault: Fault) -> None:
    revision = None
    for n in range(3):
        faults.inject(fault, when=is_a("PUT", POINTERS))
        revision = store.write_document(POINTERS, {"n": n}, revision)
        document = store.read_document(POINTERS)
        assert document is not None
        assert (document.value, document.revision) == ({"n": n}, revision)


def test_a_document_that_somebody_else_wrote_while_an_answer_was_lost_is_a_conflict(
    store: S3Store, faults: Faults, s3_config: StoreModel
) -> None:
    other = S3Store(s3_config)
    faults.inject(error(500, "InternalError"), when=is_a("PUT", POINTERS))
    faults.inject(after(lambda: other.write_document(POINTERS, {"by": "other"}, None)), when=is_a("PUT", POINTERS))
    with pytest.raises(Conflict):
        store.write_document(POINTERS, {"by": "us"}, None)
    document = other.read_document(POINTERS)
    assert document is not None
    assert document.value == {"by": "other"}

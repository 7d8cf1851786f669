"""What the store in S3 promises beyond the contract of every store: parts, options, credentials and its cache."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from s3_faults import Faults, always, error, is_a, reset_before

from llm_pipeline.adapters.s3.store import S3Store
from llm_pipeline.base.errors import ConfigError, PipelineError, Terminal, Transient
from llm_pipeline.config.store import StoreModel

PART = 1000
PARTS = 5
A_PART = is_a("PUT", "model.bin", partNumber="")
SECRET = "canary-4f1d-secret-key"
TOKEN = "canary-9b77-session-token"


@pytest.fixture
def weights(weights: Path) -> Path:
    (weights / "model.bin").write_bytes(os.urandom((PARTS - 1) * PART + 500))
    return weights


def test_a_refusal_aborts_the_upload_and_leaves_nothing_of_it(store: S3Store, faults: Faults, weights: Path) -> None:
    faults.inject(error(403, "AccessDenied"), when=A_PART)
    with pytest.raises(Terminal, match="AccessDenied"):
        store.publish("checkpoint", weights)
    assert len(faults.seen(is_a("DELETE", "model.bin", uploadId=""))) == 1
    assert not [left for left in store.leftovers(timedelta(seconds=-5)) if left.transfer]


def test_an_unfinished_upload_is_a_leftover_until_it_is_removed(store: S3Store, faults: Faults, s3_client: Any) -> None:
    s3_client.create_multipart_upload(
        **store._blobs._at(f"artifacts/checkpoint/{'0' * 64}/model.bin")
    )  # and was killed
    (unfinished,) = store.leftovers(timedelta(seconds=-5))
    for _ in range(2):
        store.remove_leftover(unfinished)
    assert store.leftovers(timedelta(seconds=-5)) == []


def test_an_artifact_completed_since_it_was_listed_as_a_leftover_stays(
    store: S3Store, faults: Faults, weights: Path
) -> None:
    faults.inject(error(403, "AccessDenied"), when=is_a("PUT", "_COMPLETE.json"))
    with pytest.raises(Terminal):
        store.publish("checkpoint", weights)
    (left,) = store.leftovers(timedelta(seconds=-5))
    ref = store.publish("checkpoint", weights)
    store.remove_leftover(left)
    assert store.verify(ref) == []


def test_only_what_is_missing_is_sent(store: S3Store, faults: Faults, weights: Path) -> None:
    faults.inject(error(403, "AccessDenied"), when=is_a("PUT", "_MANIFEST.json"))
    with pytest.raises(Terminal):
        store.publish("checkpoint", weights)
    faults.heal()
    store.publish("checkpoint", weights)
    written = [request.path.rpartition("/")[2] for request in faults.requests if request.method in ("PUT", "POST")]
    assert written == ["_MANIFEST.json", "_COMPLETE.json"]


@pytest.mark.parametrize("name", ["model.bin", "_MANIFEST.json", "extra"])
def test_a_copy_is_used_again_and_replaced_once_damaged(
    store: S3Store, faults: Faults, weights: Path, name: str
) -> None:
    copy = store.fetch(ref := store.publish("checkpoint", weights))
    faults.heal()
    store.fetch(ref)
    assert not faults.seen(is_a("GET", "model.bin"))
    (copy / name).write_bytes(b"rubbish")
    assert store.fetch(ref) == copy
    assert (copy / "model.bin").read_bytes() == (weights / "model.bin").read_bytes()
    assert b"rubbish" not in {path.read_bytes() for path in copy.iterdir()}
    assert len(faults.seen(is_a("GET", "model.bin"))) == (PARTS if name == "model.bin" else 0)


def test_an_interrupted_download_goes_on_with_the_files_that_are_there(
    store: S3Store, faults: Faults, weights: Path
) -> None:
    ref = store.publish("checkpoint", weights)
    faults.inject(reset_before, when=is_a("GET", "model.bin"), times=1000)
    with pytest.raises(Transient):
        store.fetch(ref)
    faults.heal()
    store.fetch(ref)
    assert faults.seen(is_a("GET", "model.bin"))
    assert not faults.seen(is_a("GET", "config.json"))


def test_a_fetch_without_a_cache_says_what_to_configure(config: StoreModel, weights: Path) -> None:
    store = S3Store(config.model_copy(update={"cache": None}))
    ref = store.publish("checkpoint", weights)
    with pytest.raises(ConfigError, match=r"store\.cache"):
        store.fetch(ref)
    assert store.verify(ref) == []


@pytest.mark.parametrize(
    ("code", "answered", "hint"),
    [
        ("AccessDenied", (403, Terminal), "AWS_ACCESS_KEY_ID"),
        ("ExpiredToken", (400, Terminal), "AWS_SESSION_TOKEN"),
        ("NoSuchBucket", (404, ConfigError), r"store\.uri"),
        ("AuthorizationHeaderMalformed", (400, ConfigError), "AWS_DEFAULT_REGION"),
        ("TooManyRequests", (429, Transient), "again"),
        ("InvalidRequest", (400, Terminal), "policy"),
        ("RequestTimeTooSkewed", (403, Terminal), "clock"),
    ],
)
def test_an_error_of_s3_says_what_to_do(
    store: S3Store, faults: Faults, code: str, answered: tuple[int, type[PipelineError]], hint: str
) -> None:
    status, family = answered
    faults.inject(error(status, code), when=always, times=100)
    with pytest.raises(family, match=code) as raised:
        store.write_document("pointers/m.json", {}, None)
    assert raised.match(hint)


def test_a_profile_that_does_not_exist_is_a_wrong_configuration(
    s3_config: StoreModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="correct AWS_PROFILE"):
        S3Store(s3_config).read_document("pointers/m.json")


@pytest.mark.parametrize("profile", ["default", "build"])
def test_a_refusal_names_where_the_credentials_come_from_and_no_secret(
    config: StoreModel, faults: Faults, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    secrets = f"aws_access_key_id=a\naws_secret_access_key={SECRET}\naws_session_token={TOKEN}\n"
    (tmp_path / "aws").write_text(f"[default]\n{secrets}[build]\n{secrets}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws"))
    faults.inject(error(403, "AccessDenied"), when=always, times=100)
    monkeypatch.setenv("AWS_PROFILE", profile)
    store = S3Store(config)
    with pytest.raises(Terminal) as raised:
        store.read_document("pointers/m.json")
    told = f"{raised.value} {raised.value.to_document()} {raised.getrepr(style='long')}"
    assert "AWS_PROFILE" in told
    assert SECRET not in told
    assert TOKEN not in told

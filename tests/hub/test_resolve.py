from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from llm_pipeline.artifacts.pinned import PinnedModel
from llm_pipeline.base.errors import ConfigError, IntegrityError
from llm_pipeline.hub import hub_source
from llm_pipeline.hub.access import Hub, HubRefused, HubUnavailable, connect
from llm_pipeline.hub.hub_source import HubSource

from .conftest import TOKEN_VARIABLE, LocalHub, safetensors_bytes

SECRET = "hf_canarytokenthatmustnotleak"


@pytest.fixture(autouse=True)
def _asked_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an answer means is told by the first one; another test asks again."""
    if "again" not in request.node.name:
        monkeypatch.setattr(hub_source, "_WAITS_SECONDS", ())


def resolve_revision(hub: Hub, model_id: str, revision: str = "main") -> PinnedModel:
    return HubSource(hub).resolve(model_id, revision)


def test_a_branch_is_pinned_to_its_commit_with_hashes_and_license(local_hub: LocalHub, hub: Hub) -> None:
    commit = local_hub.publish()
    model = resolve_revision(hub, "demo/tiny", "main")
    assert (model.commit, model.license, model.gated) == (commit, "apache-2.0", None)
    assert [file.path for file in model.files] == ["config.json", "model.safetensors", "tokenizer.json"]
    weights = model.files[1]
    assert weights.sha256 is not None
    assert weights.size == len(safetensors_bytes())
    assert model.files[0].sha256 is None
    assert model.size == sum(len(local_hub.contents[file.path]) for file in model.files)


@pytest.mark.parametrize("token", [None, "hf_somebodyelse"])
@pytest.mark.parametrize(("closed", "said"), [({"private": True}, "or it is private"), ({"gated": "manual"}, "gated")])
def test_a_closed_repository_is_refused_without_a_reader_s_token_before_anything_is_fetched(
    local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, token: str | None, closed: dict[str, Any], said: str
) -> None:
    local_hub.publish()
    local_hub.restrict("demo/tiny", readers=(SECRET,), **closed)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("HF_TOKEN", SECRET)  # of another variable: never sent
    if token:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(HubRefused, match=said) as caught:
        resolve_revision(connect(local_hub.endpoint, TOKEN_VARIABLE), "demo/tiny")
    assert TOKEN_VARIABLE in caught.value.hint
    assert ("/demo/tiny" in caught.value.hint) is ("gated" in closed)
    assert local_hub.downloads() == []


@pytest.mark.parametrize("closed", [{"private": True}, {"gated": "manual"}], ids=["private", "gated"])
def test_a_closed_repository_is_read_with_the_token_of_the_named_variable_and_known_as_gated(
    local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, closed: dict[str, Any]
) -> None:
    commit = local_hub.publish()
    local_hub.restrict("demo/tiny", readers=(SECRET,), **closed)
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    model = resolve_revision(connect(local_hub.endpoint, TOKEN_VARIABLE), "demo/tiny")
    assert (model.commit, model.gated) == (commit, closed.get("gated"))


def test_a_client_in_offline_mode_is_told_of_directories(
    local_hub: LocalHub, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_hub.publish()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubRefused, match="offline") as caught:
        resolve_revision(hub, "demo/tiny")
    assert "model.source to a directory" in caught.value.hint
    assert local_hub.faults.requests == []


def test_a_hub_that_is_busy_for_a_moment_is_asked_again_after_the_time_that_it_names(
    local_hub: LocalHub, hub: Hub
) -> None:
    commit, began = local_hub.publish(), time.monotonic()
    local_hub.fail("status", "/revision/main", status=503, retry_after_seconds=1)
    local_hub.fail("status", "config.json", status=503, retry_after_seconds=1)
    look = HubSource(hub).look("demo/tiny", "main")
    assert look.name == f"demo/tiny@{commit[:12]}"
    assert look.read("config.json", 2, 13) == b"architectures"
    assert time.monotonic() - began >= 2


def test_a_long_wait_is_not_waited_for_before_the_hub_is_asked_again(local_hub: LocalHub, hub: Hub) -> None:
    local_hub.publish()
    local_hub.fail("status", "/revision/main", status=429, retry_after_seconds=20)
    with pytest.raises(HubUnavailable) as caught:
        resolve_revision(hub, "demo/tiny")
    assert caught.value.retry_after_seconds == 20


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"body": "[" * 300_000}, "RecursionError"),
        (
            {"body": '{"id": "demo/tiny", "sha": "' + "0" * 40 + '", "siblings": [{"rfilename": null}]}'},
            "without a name",
        ),
        ({"status": 302, "headers": {"Location": f"https://{'a' * 300}/"}}, "label too long"),
    ],
    ids=["nested deep", "a file without a name", "a redirect to no host"],
)
def test_an_answer_made_to_break_its_reader_is_refused_with_one_clear_error(
    local_hub: LocalHub, hub: Hub, answer: dict[str, object], told: str
) -> None:
    local_hub.publish()
    local_hub.fail("status", "/revision/main", **({"status": 200} | answer))
    with pytest.raises(IntegrityError, match=f"cannot be used.*{told}"):
        resolve_revision(hub, "demo/tiny")


BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@pytest.mark.parametrize(
    ("answer", "kind", "hint"),
    [
        ((401, BAD_TOKEN), "HubRefused", TOKEN_VARIABLE),
        ((403, {}), "HubRefused", TOKEN_VARIABLE),
        ((403, {"X-Error-Code": "GatedRepo"}), "RepositoryGated", "accept the terms"),
        ((403, {"X-Error-Message": "Access to this resource is disabled."}), "HubRefused", "another repository"),
        ((404, {}), "NotOnTheHub", "check the name"),
        ((404, {"X-Error-Code": "RevisionNotFound"}), "NotOnTheHub", "branch, tag or commit"),
        ((404, {"X-Error-Code": "EntryNotFound"}), "NotOnTheHub", "resolve the revision again"),
        ((400, {}), "HubRefused", "check"),
    ],
)
def test_every_refusal_is_terminal_and_says_what_to_do(
    local_hub: LocalHub, hub: Hub, answer: tuple[int, dict[str, str]], kind: str, hint: str
) -> None:
    local_hub.publish()
    local_hub.fail("status", "/revision/main", status=answer[0], headers=answer[1])
    with pytest.raises(HubRefused) as caught:
        resolve_revision(hub, "demo/tiny")
    assert (caught.value.to_document().type, caught.value.family) == (kind, "terminal")
    assert hint in caught.value.hint


def test_a_renamed_repository_is_not_followed_to_whoever_has_the_name_now(local_hub: LocalHub, hub: Hub) -> None:
    local_hub.publish()
    local_hub.publish("newowner/tiny")
    local_hub.restrict("demo/tiny", renamed_to="newowner/tiny")
    with pytest.raises(HubRefused, match="newowner/tiny") as caught:
        resolve_revision(hub, "demo/tiny")
    assert "model.id" in caught.value.hint


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "90"}, 90),
        (429, {"ratelimit": '"api";r=0;t=55', "Retry-After": "90"}, 55),
        (429, {"ratelimit": '"api";r=9;t=55', "Retry-After": "90"}, 90),
        (503, {"Retry-After": "soon"}, None),
        (500, {}, None),
    ],
    ids=["seconds", "the hub's own limit", "the hub's own limit, not used up", "no seconds", "a fault"],
)
def test_throttling_and_server_errors_are_transient_and_say_how_long_to_wait(
    local_hub: LocalHub, hub: Hub, status: int, headers: dict[str, str], seconds: float | None
) -> None:
    local_hub.publish()
    local_hub.fail("status", "/revision/main", status=status, headers=headers)
    with pytest.raises(HubUnavailable, match=str(status)) as caught:
        resolve_revision(hub, "demo/tiny")
    assert caught.value.family == "transient"
    assert caught.value.retry_after_seconds == seconds


@pytest.mark.parametrize("path", ["../../outside.json", "/etc/cron.d/x.json", "..\\x.json"])
def test_a_hostile_listing_is_refused_and_nothing_is_written(
    local_hub: LocalHub, hub: Hub, tmp_path: Path, path: str
) -> None:
    local_hub.publish()
    record = next((local_hub.root / "demo/tiny/commits").glob("*.json"))
    fields = json.loads(record.read_text())
    fields["files"].append({**fields["files"][0], "path": path})
    record.write_text(json.dumps(fields))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IntegrityError, match="unsafe name"):
        resolve_revision(hub, "demo/tiny")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("endpoint", ["ftp://hub", "file:///etc", "http://", "https://user:secret@hub", "hub.example"])
def test_an_endpoint_that_is_no_plain_url_is_refused_without_showing_secrets(endpoint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(endpoint, TOKEN_VARIABLE)
    assert "secret" not in str(caught.value)


def test_the_token_is_in_no_error_and_no_representation(
    local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    hub = connect(local_hub.endpoint, TOKEN_VARIABLE)
    with pytest.raises(HubRefused) as caught:
        resolve_revision(hub, "demo/missing")
    assert SECRET not in f"{caught.value!s} {caught.value!r} {hub!r} {caught.value.to_document()!r} {caplog.text}"

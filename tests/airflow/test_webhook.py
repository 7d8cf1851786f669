"""The hub's webhook: who may call it, what it does, and how little that is."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from huggingface_hub import WebhookPayload
from llm_pipeline_airflow import webhook

from llm_pipeline.release.watch_record import webhook_revision
from llm_pipeline.store import open_store

URL = "/webhooks/hub"
VARIABLE = "LLM_PIPELINE_WEBHOOK_SECRET"
SECRET = "whsec-canary-äöü"


@pytest.fixture
def client(project, monkeypatch) -> Iterator[TestClient]:
    watch(project.config)
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    monkeypatch.setenv(VARIABLE, SECRET)
    webhook._read_configs.cache_clear()
    app = FastAPI()
    app.include_router(webhook.router)
    with TestClient(app) as client:
        yield client


def watch(config: Path, **changes: str) -> None:
    text = config.read_text() + "watch: {}\n"
    for old, new in changes.items():
        text = text.replace(old, new)
    config.write_text(text)


def payload(name: str = "demo/tiny", kind: str = "model") -> bytes:
    """As the hub sends it, by the hub's own model of it."""
    found = {
        "event": {"action": "update", "scope": "repo.content"},
        "repo": {
            "type": kind, "name": name, "id": "1", "private": False, "owner": {"id": "2"},
            "url": {"web": "https://hub", "api": "https://hub/api"}, "head_sha": "f" * 40,
        },
        "webhook": {"id": "3", "version": 3},
        "updatedRefs": [{"ref": "refs/heads/main", "oldSha": "e" * 40, "newSha": "f" * 40}],
    }  # fmt: skip
    WebhookPayload.model_validate(found)
    return json.dumps(found).encode()


def called(project, name: str = "tiny") -> str | None:
    return webhook_revision(open_store(f"file://{project.root}/store"), name)


def post(client: TestClient, secret: str | None = SECRET, body: object = None):
    headers = {} if secret is None else {"X-Webhook-Secret": secret.encode()}
    return client.post(URL, content=payload() if body is None else body, headers=headers)


def test_a_call_with_the_secret_makes_the_watch_look(client, project):
    assert called(project) is None
    assert post(client).status_code == 202
    first = called(project)
    assert first is not None
    assert post(client).status_code == 202
    assert called(project) not in (None, first)


def test_a_call_leaves_nothing_of_its_payload_and_one_document_however_often_it_is_made(client, project):
    for _ in range(20):
        post(client)
    (document,) = (project.root / "store").rglob("watch/**/*.json")
    assert set(json.loads(document.read_text())["value"]) == {"called_at"}


@pytest.mark.parametrize("secret", [None, "", "whsec", SECRET + "x", SECRET[:-1], "ÿ" * 2000])
def test_a_wrong_secret_is_refused_without_a_hint_before_the_body_is_read(client, project, secret):
    answers = [
        post(client, secret),
        post(client, secret, b"{"),
        post(client, secret, b"x" * (webhook.LONGEST_BODY + 1)),
    ]
    assert {(one.status_code, one.text) for one in answers} == {(403, '{"detail":"Forbidden"}')}
    assert called(project) is None


@pytest.mark.parametrize("value", [None, "", " \n"])
@pytest.mark.parametrize("secret", [None, "", SECRET])
def test_every_call_is_refused_while_no_secret_is_set(client, project, monkeypatch, value, secret):
    monkeypatch.delenv(VARIABLE)
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert post(client, secret).status_code == 403
    assert called(project) is None


def test_every_call_is_refused_while_nothing_is_watched(client, project):
    project.config.write_text(project.config.read_text().replace("watch: {}\n", ""))
    webhook._read_configs.cache_clear()
    assert post(client).status_code == 403


def test_secrets_are_compared_in_constant_time_and_as_bytes(client, monkeypatch):
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    post(client, "wrong")
    assert compared == [(b"wrong", SECRET.encode())]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"repo"', b"{}", b'{"repo": {}}', b'{"repo": {"type": "model", "name": 7}}', b"\xff\xfe"],
)
def test_what_is_no_webhook_of_the_hub_is_refused(client, project, body):
    answer = post(client, body=body)
    assert answer.status_code == 422
    assert SECRET not in answer.text
    assert called(project) is None


def test_a_body_that_is_too_long_is_refused_also_when_it_does_not_say_how_long_it_is(client, project):
    def chunks() -> Iterator[bytes]:
        for _ in range(webhook.LONGEST_BODY // 4096 + 1):
            yield b" " * 4096

    assert post(client, body=chunks()).status_code == 413
    assert post(client, body=b" " * (webhook.LONGEST_BODY + 1)).status_code == 413
    assert called(project) is None


@pytest.mark.parametrize("body", [payload("demo/other"), payload(kind="dataset"), payload("demo/tiny/../x")])
def test_a_call_about_what_nobody_watches_does_nothing(client, project, body):
    assert post(client, body=body).status_code == 202
    assert called(project) is None


def test_every_watch_of_the_model_looks_but_only_where_the_secret_is_the_deployment_s(client, project, monkeypatch):
    releases, deployments = project.config.parent, project.config.parents[1] / "deployments"
    (releases / "second.yaml").write_text(project.config.read_text())
    watch(releases / "second.yaml", **{"watch: {}\nwatch: {}": "watch: {}"})
    other = deployments / "there.yaml"
    other.write_text((deployments / "here.yaml").read_text() + "hub: { webhook_secret_variable: OTHER_SECRET }\n")
    (releases / "third.yaml").write_text(project.config.read_text().replace("deployment: here", "deployment: there"))
    monkeypatch.setenv("OTHER_SECRET", "another")
    webhook._read_configs.cache_clear()
    post(client)
    assert [called(project, name) is not None for name in ("tiny", "second", "third")] == [True, True, False]
    post(client, "another")
    assert called(project, "third") is not None


def test_a_broken_release_config_does_not_stop_the_others(client, project):
    project.config.with_name("broken.yaml").write_text("model: {")
    webhook._read_configs.cache_clear()
    assert post(client).status_code == 202


def test_a_store_that_cannot_be_written_asks_the_hub_to_call_again(client, project):
    (project.root / "store").mkdir()
    (project.root / "store" / "watch").write_text("in the way")
    assert post(client).status_code == 503


@pytest.mark.parametrize("place", ["_watched_here", "_admitted", "_read"])
def test_what_nobody_expected_is_500_with_its_traceback_in_the_log_only(client, monkeypatch, caplog, place):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of https://user:hunter2@hub.example")

    monkeypatch.setattr(webhook, place, fail)
    answer = post(client)
    assert (answer.status_code, answer.json()) == (500, {"detail": "Internal error: see the log"})
    assert "ZeroDivisionError" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_call_that_nobody_can_be_told_of_for_an_unexpected_reason_asks_the_hub_to_call_again(
    client, monkeypatch, caplog
):
    monkeypatch.setattr(webhook, "call_webhook", lambda *_: (_ for _ in ()).throw(ZeroDivisionError("a fault")))
    answer = post(client)
    assert (answer.status_code, answer.json()) == (503, {"detail": "Try again later"})
    assert "ZeroDivisionError" in caplog.text


def test_it_is_the_only_route_without_a_user(project):
    from llm_pipeline_airflow.web import app

    open_routes = [route.path for route in app.routes if not _asks_for_a_user(route)]
    assert open_routes == [URL]


def _asks_for_a_user(route) -> bool:
    def calls(dependant) -> set[str]:
        return {getattr(dependant.call, "__qualname__", "")}.union(*map(calls, dependant.dependencies))

    return any("get_user" in name or "requires_access_dag" in name for name in calls(route.dependant))

"""The pages when something is wrong: one answer that a person can use, and nothing of our insides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from llm_pipeline_airflow import web

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient

REPORT = "/dags/release__tiny/runs/manual/report"


class Manager:
    """Lets everybody read everything."""

    def is_authorized_dag(self, **_: object) -> bool:
        return True


@pytest.fixture
def client(project, monkeypatch) -> Iterator[TestClient]:
    monkeypatch.setenv("LLM_PIPELINE_RELEASES", str(project.config.parent))
    monkeypatch.setattr(web, "get_auth_manager", Manager)
    for route in web.app.routes:
        for dependency in getattr(route, "dependant", None).dependencies if hasattr(route, "dependant") else ():
            monkeypatch.setitem(web.app.dependency_overrides, dependency.call, lambda: None)
    with TestClient(web.app) as client:
        yield client


@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (ConfigError("no such DAG"), 404, "no such DAG"),
        (Transient("the store does not answer"), 503, "the store does not answer"),
        (OSError(5, "Input/output error", "/store/x"), 503, "/store/x: Input/output error"),
        (IntegrityError("a document is not valid"), 500, "a document is not valid"),
        (ZeroDivisionError("of hunter2"), 500, "server&#x27;s log"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_report_that_cannot_be_shown_is_a_page_that_says_why(client, caplog, raised, status, words):
    def fail(*_: object) -> None:
        raise raised

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "release_of_run", fail)
        answer = client.get(REPORT)
    assert answer.status_code == status
    assert words in answer.text
    assert "hunter2" not in answer.text
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert ("Traceback" in caplog.text) is isinstance(raised, OSError | ZeroDivisionError)


def test_the_list_shows_what_it_can_and_names_the_config_that_it_cannot(client, project, monkeypatch):
    project.config.with_name("odd.yaml").write_text(project.config.read_text())
    monkeypatch.setattr(web, "watch_of", lambda path: 1 / 0 if path.stem == "odd" else None)
    answer = client.get("/releases")
    assert answer.status_code == 200
    assert "<li>odd.yaml: ZeroDivisionError: division by zero" in answer.text
    assert "tiny.yaml" not in answer.text

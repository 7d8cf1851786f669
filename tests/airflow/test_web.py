"""The pages when something is wrong: one answer that a person can use, and nothing of our insides."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient
from llm_pipeline_airflow import web
from llm_pipeline_airflow.links import ReleaseReportLink
from llm_pipeline_airflow.plugin import LlmPipelinePlugin

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient

REPORT = "/dags/release__tiny/runs/manual/report"


class Manager:
    """Lets everybody read everything."""

    def is_authorized_dag(self, **_: object) -> bool:
        return True


@pytest.fixture
def client(project, monkeypatch) -> Iterator[TestClient]:
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    monkeypatch.setattr(web, "get_auth_manager", Manager)
    for route in web.app.routes:
        for dependency in getattr(route, "dependant", None).dependencies if hasattr(route, "dependant") else ():
            monkeypatch.setitem(web.app.dependency_overrides, dependency.call, lambda: None)
    with TestClient(web.app) as client:
        yield client


@pytest.fixture
def empty_store(project) -> None:
    (project.root / "store").mkdir()


@pytest.mark.usefixtures("empty_store")
@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (ConfigError("there is no such bucket"), 503, "there is no such bucket"),
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


@pytest.mark.usefixtures("empty_store")
def test_the_list_shows_what_it_can_and_names_the_config_that_is_wrong(client, project):
    project.config.with_name("odd.yaml").write_text("model: 3\n")
    answer = client.get("/releases")
    assert answer.status_code == 200
    assert "<li>odd.yaml: " in answer.text
    assert "No release yet" in answer.text
    assert "tiny.yaml" not in answer.text


@pytest.mark.parametrize("page", ["/releases", REPORT])
def test_a_store_that_this_host_does_not_have_is_no_empty_store(client, project, page):
    answer = client.get(page)
    assert answer.status_code == 503
    assert f"{project.root}/store" in answer.text
    assert "No release yet" not in answer.text
    assert "No report yet" not in answer.text


def test_releases_that_cannot_be_read_are_counted_and_not_left_out_silently(client, project, caplog):
    record = project.root / "store/releases/tiny-0/release.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    answer = client.get("/releases")
    assert answer.status_code == 503
    assert "1 documents cannot be read" in answer.text
    assert "No release yet" not in answer.text
    assert "tiny-0" in caplog.text


def test_a_dag_that_is_none_of_a_release_has_no_report(client):
    answer = client.get(REPORT.replace("tiny", "other"))
    assert answer.status_code == 404


class Key:
    dag_id, run_id = "release__tiny", "manual__2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize("base", ["http://host/", "http://host/airflow/"])
def test_views_and_links_are_found_below_the_path_of_airflow_s_user_interface(base):
    addresses = [view["href"] for view in LlmPipelinePlugin.external_views]
    addresses.append(ReleaseReportLink().get_link(None, ti_key=Key()))
    assert all(urljoin(base, address).startswith(base) for address in addresses)

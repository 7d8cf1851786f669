"""The pages when something is wrong: one answer that a person can use, and nothing of our insides."""

from __future__ import annotations

import json
from datetime import timedelta
from threading import Thread
from types import SimpleNamespace
from urllib.parse import urljoin

import pytest
from fastapi.testclient import TestClient
from faulty_api import Server, handler
from llm_pipeline_airflow import web
from llm_pipeline_airflow.links import ReleaseReportLink
from llm_pipeline_airflow.plugin import LlmPipelinePlugin
from place_here import pointer, serve
from store_history import History, a_refused_and_a_serving_release

from llm_pipeline.base.errors import ConfigError, IntegrityError, Transient
from llm_pipeline.store import open_store

KEY = SimpleNamespace(dag_id="release__tiny", run_id="manual__2026-01-01T00:00:00+00:00")
REPORT = "/dags/release__tiny/runs/manual/report"


@pytest.fixture
def client(project, monkeypatch, airflow_database, pages_for_everybody) -> TestClient:
    monkeypatch.setenv("AIRFLOW__LLM_PIPELINE__RELEASES", str(project.config.parent))
    monkeypatch.setattr(web, "_used", set)
    return pages_for_everybody


@pytest.fixture
def empty_store(project) -> None:
    (project.root / "store").mkdir()


@pytest.mark.usefixtures("empty_store")
@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (ConfigError("there is no such bucket"), 503, "there is no such bucket"),
        (Transient("the store does not answer"), 503, "the store does not answer"),
        (OSError(5, "Input/output error", "/store/x"), 503, "[/store/x]"),
        (IntegrityError("a document is not valid"), 500, "a document is not valid"),
        (ZeroDivisionError("of hunter2"), 500, "server&#39;s log"),
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


def test_the_store_of_an_example_that_nobody_released_is_not_asked(client, monkeypatch):
    monkeypatch.setattr(web, "_used", lambda _: set())
    answer = client.get("/releases")
    assert answer.status_code == 200
    assert "No release yet" in answer.text


def test_what_serves_is_asked_now(client, two_releases, project):
    serve(open_store(f"file://{project.root}/store"), "demo/tiny", "cpu-a", pointer(two_releases[1]))
    url = "http://127.0.0.1:18621"
    assert f"<td class=problem>{url} gives no answer here (ConnectError)" in client.get("/releases").text
    answers = iter([200, 502])
    with Server(("127.0.0.1", 18621), handler(lambda *_: (next(answers), b"{}"), vars)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert f"<td>{url} answers</td>" in client.get("/releases").text
        assert f"<td class=problem>{url} answers with status 502</td>" in client.get("/releases").text
        server.shutdown()


@pytest.mark.parametrize("base", ["http://host/", "http://host/airflow/"])
def test_views_and_links_are_found_below_the_path_of_airflow_s_user_interface(base):
    addresses = [view["href"] for view in LlmPipelinePlugin.external_views]
    addresses.append(ReleaseReportLink().get_link(None, ti_key=KEY))
    assert all(urljoin(base, address).startswith(base) for address in addresses)


@pytest.fixture
def two_releases(project) -> tuple[str, str]:
    """A release that was rejected, and a newer one of the same config that serves."""
    history = History(project.root)
    first, second = a_refused_and_a_serving_release(history)
    report = {
        "collected_at": (history.now + timedelta(minutes=1)).isoformat(),
        "highlights": [{"label": "Size, fp8", "value": "1.2 GB", "note": "51 % of the baseline"}],
    }
    history.store.write_file(f"releases/{second}/report.json", json.dumps(report).encode())
    return first, second


def test_the_list_says_what_serves_and_what_each_release_is(client, two_releases):
    first, second = two_releases
    text = client.get("/releases").text
    serving, listed = text.split("All releases", 1)
    assert f"<code>{second}</code></td><td>fp8</td><td>blue</td>" in serving
    assert first not in serving
    assert listed.index(second) < listed.index(first)
    assert '<td class="NO_GO">NO_GO</td><td>load_test cpu</td>' in listed
    assert "<td>1.2 GB (fp8)</td>" in listed


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", {0, 1}), ("text=00000002", {1}), ("text=DEMO/", {0, 1}), ("state=NO_GO", {0}), ("state=serves", {1}),
        ("text=other", set()), ("state=GO", set()),
    ],
)  # fmt: skip
def test_the_list_is_narrowed_by_text_and_state(client, two_releases, query, shown):
    answer = client.get(f"/releases?{query}")
    assert answer.status_code == 200
    assert {number for number, one in enumerate(two_releases) if f'value="{one}"' in answer.text} == shown
    assert "No release yet" not in answer.text
    typed = client.get("/releases", params={"text": two_releases[0] + '"><script>'})
    assert "<script" not in typed.text, "what is typed into the filter is text"


def test_two_releases_are_compared_by_gates_figures_and_configs(client, two_releases):
    text = client.get("/compare", params={"release": list(two_releases)}).text
    assert '<th scope="row">load_test cpu</th><td class="NO_GO">NO_GO</td><td class=""></td>' in text
    assert "1.2 GB: 51 % of the baseline" in text
    assert '<th scope="row">commit</th><td class="0000' in text


@pytest.mark.parametrize("releases", [[], ["one"], ["tiny-00000001-00000064", "no-such-release"]])
def test_a_comparison_needs_two_releases_that_there_are(client, two_releases, releases):
    assert two_releases
    assert client.get("/compare", params={"release": releases}).status_code == 400


def test_a_release_s_report_is_found_below_the_dag_of_its_config_only(client, two_releases, project):
    _, second = two_releases
    assert "<html>" in client.get(f"/dags/release__tiny/releases/{second}/report").text
    project.config.with_name("other.yaml").write_text(project.config.read_text())
    assert client.get(f"/dags/release__other/releases/{second}/report").status_code == 404
    assert client.get("/dags/release__tiny/releases/no-such/report").status_code == 404
    assert client.get("/dags/release__unknown/runs/manual/report").status_code == 404
